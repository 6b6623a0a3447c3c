# The file of the certificate authorities that sandboxes with a network trust.
{ pkgs }: "${pkgs.cacert}/etc/ssl/certs/ca-bundle.crt"

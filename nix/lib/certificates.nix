# The certificate authorities that a sandbox with a network trusts.
{ pkgs }:
rec {
  # The public ones.
  public = "${pkgs.cacert}/etc/ssl/certs/ca-bundle.crt";

  # Whether the proxy ends TLS for some hosts.
  endsTLS = network: network != "none" && (network.rules != { } || network.credentials != { });

  # Where the launcher adds the sandbox's own authority to the public ones.
  own = "/certificates.crt";

  # The file in the sandbox that has all of them.
  file = network: if endsTLS network then own else public;

  # The variables by which programs find that file. Nix's programs read the first, and
  # most others the second. The shell of a build has both with paths at which there is
  # no file. Those after them are read by programs that bring public certificates along.
  variables =
    network:
    pkgs.lib.optionalAttrs (network != "none") (
      pkgs.lib.genAttrs (
        [
          "NIX_SSL_CERT_FILE"
          "SSL_CERT_FILE"
        ]
        ++ pkgs.lib.optionals (endsTLS network) [
          "CURL_CA_BUNDLE"
          "GIT_SSL_CAINFO"
          "NODE_EXTRA_CA_CERTS"
          "PIP_CERT"
          "REQUESTS_CA_BUNDLE"
        ]
      ) (_: file network)
    );
}

# The functions that come with installShellFiles: nothing here reads manual pages or completions.
installManPage() { :; }
installShellCompletion() { :; }

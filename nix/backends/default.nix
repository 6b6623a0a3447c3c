# The ways to isolate a sandbox, by name. Each is a set { problems; unsupported; make; addition; }.
#
# problems PREFIX OPTIONS
#                   sentences about a platform on which the backend does not work, and
#                   about options that it does not have
# unsupported LOCATION { name; project; session; }, optional
#                   sentences about what a configuration sets for all environments and
#                   this one, of this backend, does not have
# make {
#   options         every option of mkSandbox, with defaults filled in
#   environment     the package of the programs
#   variables       the environment variables
#   shellVariables  a file of those that a shell brings (lib/shellVariables.nix), or null
#   command         the interpreter's command line, a list
#   driver          the folder of its driver, or null
#   pipe            whether a command without a driver reads its code from stdin
# }
#
# and make gives
#
# {
#   bin             the contents of the programs in bin/, by name: run, session-run
#                   and check (docs/contracts.md, C1)
#   contents        the folder that holds everything that is in the sandbox
#   closure         a hash of it
#   needs           a string that is equal for sandboxes that need the same of a
#                   machine, for which one bin/check answers
#   metadata        further fields of metadata.json, if any
# }
#
# addition [ { name; paths; program; } ], optional
#                   a program, bin/grow, that adds packages to a sandbox that runs, and metadata.json
{
  pkgs,
  host,
  programs,
}:
{
  jail = { inherit (import ./jail.nix { inherit pkgs host programs; }) addition make problems; };
  vm = import ./vm.nix { inherit pkgs host programs; };
}

# The builder of every derivation that stdenv makes.

# Nix 2.8 names the files of structured attributes by their places outside of the sandbox.
if [ ! -e "${NIX_ATTRS_SH_FILE-}" ] && [ -e .attrs.sh ]; then
	export NIX_ATTRS_SH_FILE=$PWD/.attrs.sh NIX_ATTRS_JSON_FILE=$PWD/.attrs.json
fi
if [ -e "${NIX_ATTRS_SH_FILE-}" ]; then
	source "$NIX_ATTRS_SH_FILE"
	# as without structured attributes: each output is a variable, and their names are a list
	for _output in "${!outputs[@]}"; do export "$_output=${outputs[$_output]}"; done
	_names="${!outputs[*]}"
	unset outputs
	outputs=$_names
fi
source "$stdenv/setup"
genericBuild

# What the evaluation of code's flake says of a package or a program, as JSON (builder/flake.go). project.sh gives the
# text of this to an evaluation that reads no other file.
found:
let
  inherit (builtins) attrNames getContext head parseDrvName unsafeDiscardStringContext;
  context = getContext found.program;
  drv = head (attrNames context);
  said =
    if found.type or null == "app" then
      {
        inherit drv;
        outputs = context.${drv}.outputs;
        name = "app";
        program = unsafeDiscardStringContext found.program;
      }
    else
      {
        drv = unsafeDiscardStringContext found.drvPath;
        outputs = found.meta.outputsToInstall or [ (found.outputName or "out") ];
        inherit (found) name;
        program = found.meta.mainProgram or (parseDrvName found.name).name;
      };
in
builtins.toJSON said

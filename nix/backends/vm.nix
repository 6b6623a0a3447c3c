# A virtual machine, with a kernel of its own, and in it the same jail as in the backend
# `jail`: two walls.
#
# bin/run is a description, whose interpreter is nix-sandbox-vm: it starts QEMU, in a
# jail too, with KVM if that works and otherwise emulated, and has the machine's
# first process start the program of the same name that is in the machine's image.
#
# QEMU and the launcher are of the host's package set, which may be that of macOS, and
# what is in the machine of the other one.
{ pkgs, host, programs }:
let
  inherit (pkgs) lib;
  inherit (pkgs.stdenv) hostPlatform;
  isOnMac = host.stdenv.hostPlatform.isDarwin or false;

  # The jail in the machine, and that of QEMU.
  jail = import ./jail.nix { inherit pkgs host programs; };
  outer = import ./jail.nix {
    inherit host programs;
    pkgs = host;
  };
  seatbelt = import ./seatbelt.nix { pkgs = host; };
  certificates = import ../lib/certificates.nix { inherit pkgs; };
  closureTree = import ../lib/closureTree.nix { inherit pkgs; };
  user = import ../lib/user.nix;

  # What QEMU calls the machine, by the processor. microvm has no firmware and few devices.
  boards = {
    x86_64 = {
      board = "microvm";
      kernel = "bzImage";
      console = "ttyS0";
      # Every feature of QEMU except those that have a kernel choose code which is faster on
      # real processors and slower in QEMU: it executes the fast string instructions a
      # byte at a time, and a fifth level of page tables lengthens each page walk. Without
      # them a copy takes a fifth less processor time until it is ready.
      cpu = "max,-la57,-erms,-fsrm,-fsrs,-fsrc,-fzrm";
      append = [
        "reboot=t"
        # The host's kernel has its own against the machine.
        "mitigations=off"
      ];
    };
    aarch64 = {
      board = "virt";
      kernel = "Image";
      console = "ttyAMA0";
      # Signed pointers are slow in QEMU by the algorithm that processors use.
      cpu = "max,pauth-impdef=on";
      append = [
        "mitigations=off"
        # Distributions reserve 64 MiB for devices, which the kernel's own memory may not use: code that
        # fills buffers would have the machine's memory before its own limit.
        "cma=0"
      ];
    };
  };
  cpu = hostPlatform.parsed.cpu.name;
  inherit (boards.${cpu}) board console;

  qemu = if isOnMac then host.qemu else host.qemu_kvm;
  kernel = pkgs.linuxPackages.kernel;
  build = lib.getExe programs.vmImage;

  # The closures of QEMU, and of the program that makes an image of the project: the jails
  # of both bind one folder.
  tree = closureTree {
    name = "machine";
    roots = [
      qemu
      host.erofs-utils
    ];
  };

  # Describes the jail of a program of the host: of bubblewrap, or of macOS. It sees the
  # files in `binds`, and a path of these is what `see` gives.
  confine =
    { binds, command }:
    if isOnMac then
      {
        schema = 1;
        seatbelt = "${seatbelt {
          program = lib.head command;
          roots = [
            qemu
            host.erofs-utils
          ];
          files = map (bind: bind.from) binds;
        }}";
        inherit command;
      }
    else
      outer.describeProgram {
        flags = isolated;
        inherit binds no_overlay command;
      };
  see = path: file: if isOnMac then "${file}" else path;

  # Bounds of a project: each machine has an image of it on disk.
  project_files = 100000;
  project_mb = 2048;

  # What the jails of both programs see.
  isolated = [
    "--unshare-net"
    "--ro-bind"
    "${tree}/nix"
    "/nix"
    # Both open a descriptor that they were given once more: QEMU the file of the memory,
    # the other one the file for the image.
    "--proc"
    "/proc"
    "--remount-ro"
    "/proc"
    "--dev"
    "/dev"
    "--remount-ro"
    "/dev"
  ];
  no_overlay = "it is a virtual machine";

  mkfs = confine {
    binds = [ ];
    command = [
      (lib.getExe' host.erofs-utils "mkfs.erofs")
      "--quiet"
      # The archive has no extended attributes.
      "-x-1"
      "--tar=f"
      (if isOnMac then "/dev/fd/3" else "/proc/self/fd/3")
    ];
  };

  # The first version of QEMU that restores from a file of memory that it may only read.
  qemuWants = "8.2";

  # What the kernel and the programs beside the code need of the machine's memory, in
  # MiB: an estimate with a margin for Debian's kernel, the jail, the agent and the first
  # process.
  own_mb = 128;

  # What QEMU needs beside the machine's memory: its heap, the translated code if it
  # emulates, and the page tables. An estimate with a margin, not measured for each interpreter.
  qemu_mb = 256;
  # QEMU's threads, most of them for reading the image, and those of nix-sandbox-vm.
  qemu_tasks = 128;

  make =
    args:
    let
      inherit (args.options) memory_mb pids workspace_mb;
      cpus = if args.options.cpus == null then 1 else builtins.floor args.options.cpus;

      inherit (args.options) network;
      isNetworked = network != "none";

      # Folders of the host are in an image that the launcher makes; the first process has them there. What is in
      # the store is in the machine's own.
      binds = lib.imap0 (i: to: {
        name = "bind${toString i}";
        from = "${args.options.extra_binds.${to}}";
        inherit to;
      }) (lib.filter (to: !builtins.hasContext "${args.options.extra_binds.${to}}") (lib.attrNames args.options.extra_binds));

      inner = jail.make (
        args
        // {
          inMachine = true;
          options = args.options // {
            extra_binds = args.options.extra_binds // lib.optionalAttrs (certificates.endsTLS network) {
              # The first process writes it when it knows the proxy's.
              ${certificates.own} = "/shown/certificates";
            } // lib.listToAttrs (map (bind: lib.nameValuePair bind.to "/shown/${bind.name}") binds);
          };
        }
      );

      # What the launcher in the machine reads, and the folder that its jail binds, which
      # has the originals of its files in its closure and does without them.
      store = pkgs.runCommandLocal "sandbox-image.erofs"
        {
          __structuredAttrs = true;
          # The image is whole: nothing outside of it is read. (Nix before 2.14 ignores this.)
          unsafeDiscardReferences.out = true;
          closure = pkgs.closureInfo { rootPaths = inner.parts; };
          inherit (inner) bin contents;
          nativeBuildInputs = [ pkgs.erofs-utils ];
        }
        ''
          mkdir -p root/nix/store root/programs root/dev root/proc root/sys root/tmp root/image root/shown root/layer
          xargs cp --archive --reflink=auto --target-directory=root/nix/store < $closure/store-paths
          cp --archive --reflink=auto $contents root/nix/store/
          for name in run session-run; do
            printf %s "''${bin[$name]}" > root/programs/$name
            chmod +x root/programs/$name
          done
          ${build} store root $out
        '';

      initrd = pkgs.runCommandLocal "sandbox-initrd" { nativeBuildInputs = [ pkgs.xz ]; } ''
        ${build} initrd ${kernel} ${kernel.modules or kernel} ${lib.getExe programs.vmGuest} \
          ${toString memory_mb} ${toString pids} $out
      '';

      show = from: to: {
        inherit to;
        from = "${from}";
      };

      # The jail of QEMU. nix-sandbox-vm adds the arguments that the accelerator decides,
      # and opens the descriptors that are named here.
      image = "${kernel}/${boards.${cpu}.kernel}";
      confined = confine {
        binds = [
          (show image "/kernel")
          (show initrd "/initrd")
          (show store "/store")
        ];
        command = [
          (lib.getExe' qemu "qemu-system-${cpu}")
          "-name"
          "sandbox"
          # QEMU would find its own program, and its firmware beside it, by /proc.
          "-L"
          "${qemu}/share/qemu"
          "-nodefaults"
          "-no-user-config"
          "-display"
          "none"
          "-no-reboot"
        ]
        ++ lib.optionals (!isOnMac) [
          "-sandbox"
          "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
        ]
        ++ [
          "-m"
          (toString (memory_mb + own_mb))
          "-smp"
          (toString cpus)
          "-drive"
          "id=store,if=none,format=raw,readonly=on,file.locking=off,file=${see "/store" store}"
          "-device"
          "virtio-blk-device,drive=store,serial=store"
          "-device"
          "virtio-serial-device,id=ports,max_ports=8"
        ]
        ++ lib.concatLists (
          lib.imap0
            (i: name: [
              "-chardev"
              "socket,id=${name},fd=${toString (3 + i)}"
              "-device"
              "virtserialport,bus=ports.0,nr=${toString (1 + i)},chardev=${name},name=org.nix-sandbox-mcp.${name}"
            ])
            [
              "in"
              "out"
              "log"
              "control"
            ]
        )
        ++ lib.optionals isNetworked [
          "-chardev"
          "socket,id=network,fd=12"
          "-device"
          "virtserialport,bus=ports.0,nr=5,chardev=network,name=org.nix-sandbox-mcp.network"
        ]
        ++ [
          "-chardev"
          "socket,id=monitor,fd=7"
          "-mon"
          "chardev=monitor,mode=control"
          "-chardev"
          "socket,id=console,fd=8"
          "-serial"
          "chardev:console"
        ];
      };

      description =
        "#!${lib.getExe programs.vm}\n"
        + builtins.toJSON {
          schema = 1;
          memory_mb = memory_mb + own_mb;
          # What a machine begins with, and one that was saved does without.
          kernel = see "/kernel" image;
          initrd = see "/initrd" initrd;
          inherit board;
          inherit (boards.${cpu}) cpu;
          append = lib.concatStringsSep " " ([
            "console=${console}"
            "quiet"
            "loglevel=1"
            "panic=-1"
            "random.trust_cpu=on"
            # 350 ms of tests of unused algorithms, if it is emulated.
            "cryptomgr.notests=1"
            "init_on_alloc=0"
            # Nothing asks how long tasks wait, nor has a policy of AppArmor.
            "psi=0"
            "apparmor=0"
            # A variable of the first process: if the processor is slow, the Go runtime
            # would interrupt it with signals.
            "GODEBUG=asyncpreemptoff=1"
          ] ++ boards.${cpu}.append);
          jail =
            confined
            // lib.optionalAttrs (!isOnMac) {
              apparmor = outer.profileOf (lib.getExe programs.vm);
            }
            // lib.optionalAttrs isNetworked {
              network = outer.networkOf network;
            };
          project = {
            mount = "/project";
            inbox = import ../lib/inbox.nix;
            inherit binds;
            reserved =
              import ../lib/reserved.nix ++ map (bind: bind.to) binds ++ lib.optional (certificates.endsTLS network) certificates.own;
            # In the machine, whose kernel has them.
            overlay = true;
            no_overlay = "";
            layer_mb = workspace_mb;
            max_files = project_files;
            max_mb = project_mb;
            inherit mkfs;
          };
        }
        + "\n";
    in
    {
      bin = lib.genAttrs [
        "run"
        "session-run"
        "check"
      ] (_: description);
      inherit (inner) contents closure;
      needs = builtins.hashString "sha256" "${lib.getExe programs.vm} ${qemu}${lib.optionalString isNetworked " network ${builtins.toJSON ((outer.networkOf network).secrets or [ ])}"}";
      metadata = {
        # What a sandbox uses of the host beside what its code may.
        overhead = {
          memory_mb = own_mb + qemu_mb;
          pids = qemu_tasks;
        };
        # It says which it is, and that an emulated machine takes longer to start.
        reports = true;
        # A session can be put to disk and go on later, and a copy of it beside it.
        suspend = true;
        branch = true;
        # Where the launcher remembers whether KVM works.
        reads = [
          "HOME"
          "XDG_CACHE_HOME"
          "NIX_SANDBOX_VM_SNAPSHOTS"
        ];
      };
    };
in
{
  inherit make;

  unsupported =
    location:
    {
      name,
      session,
      ...
    }:
    lib.optional (session.shared_files or null == true)
      "${location "session"} shared_files is true, and the environment ${name} has backend \"vm\", whose virtual machines share no files: set backend = \"jail\", or leave shared_files out";

  problems =
    location: given:
    lib.optional (!(hostPlatform.isLinux && boards ? ${cpu}))
      "${location} backend is \"vm\", whose virtual machines are those of x86_64-linux and aarch64-linux, and this is ${hostPlatform.system}: set backend = \"jail\""
    ++ lib.optional (boards ? ${cpu} && !(lib.versionAtLeast (qemu.version or "0") qemuWants))
      "${location} backend is \"vm\", which takes QEMU ${qemuWants}, and this package set has ${qemu.version or "none"}: use a newer nixpkgs, or set backend = \"jail\""
    ++ lib.optional (isOnMac && given.network != "none")
      "${location} network is set, and the network of a virtual machine takes the namespaces of Linux, which ${host.stdenv.hostPlatform.system} does not have: leave it out"
    ++ lib.optional (given.devices != [ ])
      "${location} devices is set, and a virtual machine has no device of the host: set backend = \"jail\", or leave it out"
    ++ lib.optional (given.cpus != null && builtins.floor given.cpus != builtins.ceil given.cpus)
      "${location} cpus is ${builtins.toJSON given.cpus}, and a virtual machine has whole processors: set cpus = ${toString (builtins.ceil given.cpus)}, or backend = \"jail\"";
}

# One group of Debian packages -> one store path.
#
# Unpacks the packages of $debs, merges /usr and its parts (usr/bin, sbin, ... -> bin), leaves out what no program reads,
# retargets links, binds every ELF file to the store paths of the libraries that it needs, and points the scripts at
# interpreters in the store. Only $out and the paths in $deps can be named by the result.
#
# Environment: out, seed (bin/ and lib/ of unpatched programs), folder, loader and elf (of the processor), debs, deps, libc (store path, empty in libc's own
# group), postFixup (shell text, run last by busybox).
use strict;
use warnings;

my ($out, $seed) = @ENV{qw(out seed)};
my @debs = split ' ', $ENV{debs};
my @deps = split ' ', $ENV{deps};
my ($loader, $elf) = @ENV{qw(loader elf)};
my $arch = "lib/$ENV{folder}";
my $libc = ($ENV{libc} || $out) . "/$arch";

# a program of the seed, through its own loader
sub seed { my ($program, @arguments) = @_; return ("$seed/lib/ld-linux-x86-64.so.2", '--library-path', "$seed/lib", "$seed/bin/$program", @arguments) }
sub run { my @command = @_; system(@command) == 0 or die "failed: @command\n" }

# ---- unpack -----------------------------------------------------------------------------------------------------

my %unused = map { $_ => 1 } qw(share/man share/info share/locale share/lintian share/bug share/doc-base share/menu
    share/applications share/pixmaps share/bash-completion share/zsh share/fish share/apport share/gdb share/mime
    share/metainfo lib/systemd lib/udev lib/tmpfiles.d lib/sysusers.d lib/sysctl.d lib/pcrlock.d lib64 libx32 lib32
    etc/init.d etc/default etc/apparmor.d etc/cron.d etc/cron.daily etc/logrotate.d etc/bash_completion.d etc/alternatives
    var usr/local boot root run home media mnt srv dev proc sys tmp);

# where a path of a package goes below $out; undef: nowhere
sub place {
    my ($path) = @_;
    $path =~ s{^\./}{};
    $path =~ s{^/}{};
    $path =~ s{/+$}{};
    $path =~ s{^usr/}{} unless $path =~ m{^usr/local};
    $path =~ s{^(?:sbin|games)(?=/|$)}{bin};
    my ($first, $second) = split m{/}, $path;
    return undef if $path eq '' or $path eq 'usr' or $unused{$first};
    return undef if defined $second and $unused{"$first/$second"};
    # libc would look for its converters below /usr
    return undef if $path =~ m{^\Q$arch\E/gconv};
    # the test data of Go's own library holds broken programs
    return undef if $path =~ m{^share/go-[^/]*/(?:test|api|misc)(?:/|$)} or $path =~ m{^share/go-.*/testdata(?:/|$)};
    # tests of python packages are a third of them; some modules import what lies beside the tests
    return undef if $path =~ m{^lib/python3/dist-packages/.*/tests/(?:.*/)?(?:test_[^/]*|[^/]*[.](?!py$)[^/.]*)$};
    # of the documentation only the licences stay
    return undef if $path =~ m{^share/doc/} and $path !~ m{/copyright$};
    return $path;
}

my (%directories, %links);

sub directory {
    my ($path) = @_;
    return if $directories{$path}++;
    directory($1) if $path =~ m{^(.*)/};
    mkdir "$out/$path" or die "mkdir $out/$path: $!\n";
}

sub parent { my ($path) = @_; directory($1) if $path =~ m{^(.*)/} }

# the member data.tar.* of a .deb, which is an ar archive; returns a handle that reads the tar
sub data {
    my ($deb) = @_;
    open my $file, '<:raw', $deb or die "$deb: $!\n";
    read $file, my $magic, 8;
    die "$deb is not a package\n" if $magic ne "!<arch>\n";
    while (read($file, my $header, 60) == 60) {
        my ($name, $size) = (unpack 'A16 x32 A10', $header);
        if ($name =~ m{^data\.tar(?:\.(\w+))?/?$}) {
            my %decoder = (xz => [seed('xz', '-dc')], zst => [seed('zstd', '-dcq')], gz => ["$seed/bin/busybox", 'gzip', '-dc']);
            my $format = defined $1 ? $1 : '';
            my $member = "$ENV{NIX_BUILD_TOP}/data";
            read($file, my $bytes, $size) == $size or die "$deb ends early\n";
            open my $copy, '+>:raw', $member or die "$member: $!\n";
            print {$copy} $bytes;
            close $copy or die "$member: $!\n";
            open STDIN, '<:raw', $member or die "$member: $!\n";
            my $decoder = $format eq '' ? ["$seed/bin/busybox", 'cat'] : $decoder{$format} or die "$deb: no decoder for $name\n";
            open my $tar, '-|', @$decoder or die "@$decoder: $!\n";
            binmode $tar;
            return $tar;
        }
        seek $file, $size + $size % 2, 1;
    }
    die "$deb has no data\n";
}

sub unpack_deb {
    my ($deb) = @_;
    my $tar = data($deb);
    my $take = sub {
        my ($size) = @_;
        my $bytes = '';
        while (length $bytes < $size) {
            read $tar, $bytes, $size - length $bytes, length $bytes or die "$deb ends early\n";
        }
        return $bytes;
    };
    my ($long_name, $long_link);
    while (1) {
        my $header = $take->(512);
        last if $header =~ /^\0*$/;
        my ($name, $mode, $size, $type, $link, $magic, $prefix) = unpack 'Z100 A8 x16 A12 x20 a1 Z100 a6 x82 Z155', $header;
        s/[\0 ]+$//s for $mode, $size;
        $size = oct $size;
        my $body = $take->($size + (-$size) % 512);
        substr($body, $size) = '';
        if ($type eq 'L') { ($long_name = $body) =~ s/\0.*//s; next }
        if ($type eq 'K') { ($long_link = $body) =~ s/\0.*//s; next }
        $name = defined $long_name ? $long_name : ($magic eq "ustar\0" and $prefix ne '') ? "$prefix/$name" : $name;
        $link = $long_link if defined $long_link;
        undef $long_name;
        undef $long_link;
        my $path = place($name);
        next unless defined $path;
        if ($type eq '5') { directory($path) }
        elsif ($type eq '0' or $type eq "\0") {
            parent($path);
            open my $file, '>:raw', "$out/$path" or die "$out/$path: $!\n";
            print {$file} $body;
            close $file or die "$out/$path: $!\n";
            # set-uid bits have no place in the store
            chmod((oct($mode) & 0111) ? 0755 : 0644, "$out/$path");
        }
        elsif ($type eq '1') {
            my $target = place($link);
            next unless defined $target;
            parent($path);
            link "$out/$target", "$out/$path" or die "link $out/$path: $!\n";
        }
        elsif ($type eq '2') { $links{$path} = [$name, $link] }
        else { die "$deb: $name has the unsupported type '$type'\n" }
    }
    my $rest;
    1 while read $tar, $rest, 65536;
    close $tar or die "$deb: its data cannot be decoded\n";
}

# ---- links ------------------------------------------------------------------------------------------------------

# "a/b/../c" -> "a/c"
sub normal {
    my @parts;
    for my $part (split m{/}, $_[0]) {
        next if $part eq '' or $part eq '.';
        if   ($part eq '..') { pop @parts }
        else                 { push @parts, $part }
    }
    return join '/', @parts;
}

sub there { return -e $_[0] || -l $_[0] }

sub make_links {
    for my $path (sort keys %links) {
        my ($name, $target) = @{ $links{$path} };
        $name =~ s{^\./}{};
        (my $folder = $name) =~ s{[^/]*$}{};
        my $inside = place(normal($target =~ m{^/} ? $target : "$folder$target"));
        next unless defined $inside;
        next if $inside eq $path or -d "$out/$path";
        if (there("$out/$inside") or $links{$inside}) {
            # relative, so that a copy of the tree stays whole
            my $up = '../' x ($path =~ tr{/}{});
            parent($path);
            symlink "$up$inside", "$out/$path" or die "symlink $path: $!\n";
            next;
        }
        my ($dependency) = grep { there("$_/$inside") } @deps;
        if ($dependency) {
            parent($path);
            symlink "$dependency/$inside", "$out/$path" or die "symlink $path: $!\n";
        }
        else { print "left out: the link $path to $target, which no dependency has\n" }
    }
}

# ---- ELF --------------------------------------------------------------------------------------------------------

sub walk {
    my ($folder, $visit) = @_;
    opendir my $handle, $folder or return;
    for my $entry (sort grep { $_ ne '.' and $_ ne '..' } readdir $handle) {
        my $path = "$folder/$entry";
        if    (-l $path) { next }
        elsif (-d _)     { walk($path, $visit) }
        else             { $visit->($path) }
    }
}

# { type, interpreter, needed => [...], rpath } of a dynamic ELF file; undef for all else
sub elf {
    my ($path) = @_;
    open my $file, '<:raw', $path or die "$path: $!\n";
    read $file, my $head, 64;
    return undef unless length $head == 64 and substr($head, 0, 6) eq "\177ELF\2\1";
    my ($type, $machine, $offset, $size, $count) = unpack 'x16 v v x12 Q< x14 v v', $head;
    return undef unless $machine == $elf and ($type == 2 or $type == 3);
    my $bytes = sub { my ($at, $length) = @_; my $data; seek $file, $at, 0; read $file, $data, $length; return $data };
    my (@loads, $interpreter, $dynamic);
    for my $i (0 .. $count - 1) {
        my ($kind, $at, $address, $length) = unpack 'V x4 Q< Q< x8 Q<', $bytes->($offset + $i * $size, $size);
        if    ($kind == 1) { push @loads, [$address, $at, $length] }
        elsif ($kind == 2) { $dynamic = $bytes->($at, $length) }
        elsif ($kind == 3) { ($interpreter = $bytes->($at, $length)) =~ s/\0.*//s }
    }
    return undef unless defined $dynamic;
    my (%at, @needed);
    while ($dynamic =~ /\G(.{8})(.{8})/gs) {
        my ($tag, $value) = (unpack('Q<', $1), unpack('Q<', $2));
        last if $tag == 0;
        if   ($tag == 1) { push @needed, $value }
        else             { $at{$tag} = $value }
    }
    return undef unless defined $at{5} and defined $at{10};
    my ($load) = grep { $at{5} >= $_->[0] and $at{5} < $_->[0] + $_->[2] } @loads or return undef;
    my $strings = $bytes->($at{5} - $load->[0] + $load->[1], $at{10});
    my $string = sub { my ($index) = @_; return substr($strings, $index, index($strings, "\0", $index) - $index) };
    my $rpath = exists $at{29} ? $at{29} : $at{15};
    return { type => $type, interpreter => $interpreter, needed => [map { $string->($_) } @needed], rpath => defined $rpath ? $string->($rpath) : '' };
}

# The folder of a shared library: the usual place of $out and each dependency first, then their deeper folders (libblas3
# keeps its library in .../blas).
my %found;
my $deep;
sub library {
    my ($name) = @_;
    return $found{$name} if exists $found{$name};
    for my $root ($out, @deps) {
        for my $folder ($arch, 'lib') {
            return $found{$name} = "$root/$folder" if -e "$root/$folder/$name";
        }
    }
    if (!$deep) {
        $deep = {};
        my $look;
        $look = sub {
            my ($folder) = @_;
            opendir my $handle, $folder or return;
            for my $entry (sort readdir $handle) {
                next if $entry =~ /^\./ or $entry =~ /^(?:python3?|python3\..*|node_modules|perl|perl5|gconv|locale|git-core|go-.*)$/;
                if    (-d "$folder/$entry")       { $look->("$folder/$entry") unless -l "$folder/$entry" }
                elsif ($entry =~ /\.so(?:\.|$)/) { $deep->{$entry} = $folder unless exists $deep->{$entry} }
            }
        };
        $look->("$_/lib") for $out, @deps;
    }
    return $found{$name} = $deep->{$name};
}

sub bind_elf {
    my ($path) = @_;
    return if $path =~ m{/(?:\Q$loader\E|libc\.so\.6)$};    # they must stay as they are
    my $elf = elf($path) or return;
    return unless @{ $elf->{needed} } or defined $elf->{interpreter};
    my (@folders, %seen);
    my $add = sub { push @folders, $_[0] unless $seen{ $_[0] }++ };
    for my $name (@{ $elf->{needed} }) {
        next if $name eq $loader;
        (my $beside = $path) =~ s{[^/]*$}{};
        if (-e "$beside$name" and $beside ne "$out/$arch/") { $add->('$ORIGIN'); next }
        my $folder = library($name);
        # a plugin may need what only its host program has
        if   (defined $folder) { $add->($folder) }
        else                   { print "missing: $name, which $path needs\n" }
    }
    for my $entry (split /:/, $elf->{rpath}) {
        if ($entry =~ /^\$ORIGIN/) { $add->($entry) }
        elsif (defined(my $inside = place($entry))) {
            -d "$_/$inside" and $add->("$_/$inside") for $out, @deps;
        }
    }
    # libc opens libgcc_s itself (pthread_exit), so its folder is always there
    $add->($libc);
    my @patchelf = seed('patchelf');
    my $rpath = join ':', @folders;
    # DT_RPATH on programs: it also serves what libc opens; DT_RUNPATH on libraries
    my @steps = ([defined $elf->{interpreter} ? '--force-rpath' : (), '--set-rpath', $rpath, '--no-default-lib']);
    push @steps, ['--set-interpreter', "$libc/$loader"] if defined $elf->{interpreter};
    # patchelf 0.18 gives up on programs at a fixed address (gawk) unless the interpreter comes in a step of its own, last
    @steps = ([map { @$_ } @steps]) if $elf->{type} == 3;
    run(@patchelf, @$_, $path) for @steps;
}

# ---- scripts ----------------------------------------------------------------------------------------------------

sub bind_script {
    my ($path) = @_;
    return unless -x $path;
    open my $file, '<:raw', $path or die "$path: $!\n";
    read $file, my $start, 2;
    return unless defined $start and $start eq '#!';
    my $line = <$file>;
    chomp $line;
    my ($program, @arguments) = split ' ', $line;
    return if $program =~ m{^/nix/store/};
    if ($program =~ m{/env$}) {
        shift @arguments while @arguments and $arguments[0] =~ /^-/;
        $program = shift @arguments;
    }
    (my $name = defined $program ? $program : '') =~ s{.*/}{};
    my ($root) = grep { -e "$_/bin/$name" } $out, @deps;
    if (!defined $root) {
        # A program that cannot start is no program.
        if ($path =~ m{^\Q$out\E/bin/}) { print "left out: $path, whose interpreter $name is no dependency\n"; unlink $path }
        else                            { chmod 0644, $path }
        return;
    }
    local $/;
    my $rest = <$file>;
    close $file;
    open $file, '>:raw', $path or die "$path: $!\n";
    print {$file} join(' ', "#!$root/bin/$name", @arguments), "\n", defined $rest ? $rest : '';
    close $file or die "$path: $!\n";
}

# ---- python modules ---------------------------------------------------------------------------------------------

# Debian's python modules name files of the system (matplotlib's data, the certificates, the time zones). A name of a file
# or folder that $out or a dependency has becomes its store path.
sub bind_module {
    my ($path) = @_;
    return unless $path =~ /\.py$/;
    local $/;
    open my $file, '<:raw', $path or die "$path: $!\n";
    my $text = <$file>;
    return unless defined $text;
    my $changed = $text =~ s{(?<![\w.\}/])(/(?:usr/(?:share|lib|bin)|etc)/[\w.+-]+(?:/[\w.+-]+)*)}{
        my $name = $1;
        my $inside = place($name);
        my ($root) = defined $inside ? grep { -e "$_/$inside" } $out, @deps : ();
        defined $root ? "$root/$inside" : $name;
    }ge;
    return unless $changed;
    open $file, '>:raw', $path or die "$path: $!\n";
    print {$file} $text;
    close $file or die "$path: $!\n";
}

# -----------------------------------------------------------------------------------------------------------------

mkdir $out or die "mkdir $out: $!\n";
unpack_deb($_) for @debs;
make_links();
my @files;
walk($out, sub { push @files, $_[0] });
bind_elf($_) for @files;
bind_script($_) for @files;
bind_module($_) for @files;
if ($ENV{postFixup}) {
    my $tools = "$ENV{NIX_BUILD_TOP}/busybox";
    mkdir $tools;
    run("$seed/bin/busybox", '--install', '-s', $tools);
    $ENV{PATH} = $tools;
    run("$seed/bin/busybox", 'sh', '-euc', $ENV{postFixup});
}

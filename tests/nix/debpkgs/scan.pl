# scan.pl PATH...: looks at every file of store paths and prints what refers to the machine it was built on:
#   interpreter / rpath   an ELF file whose loader or library folders lie outside of /nix/store
#   library               a library that an ELF file needs and that its folders do not have
#   script                a program whose first line names an interpreter outside of /nix/store
#   link                  a link that leads nowhere or out of /nix/store
use strict;
use warnings;

sub report { print join(' ', @_), "\n" }

sub elf {
    my ($path) = @_;
    open my $file, '<:raw', $path or return;
    read $file, my $head, 64;
    return unless length $head == 64 and substr($head, 0, 6) eq "\177ELF\2\1";
    my ($machine, $offset, $size, $count) = unpack 'x18 v x12 Q< x14 v v', $head;
    return unless $machine == 62;
    my $bytes = sub { my $data; seek $file, $_[0], 0; read $file, $data, $_[1]; return $data };
    my (@loads, $dynamic);
    for my $i (0 .. $count - 1) {
        my ($kind, $at, $address, $length) = unpack 'V x4 Q< Q< x8 Q<', $bytes->($offset + $i * $size, $size);
        push @loads, [$address, $at, $length] if $kind == 1;
        $dynamic = $bytes->($at, $length) if $kind == 2;
        if ($kind == 3) {
            my $interpreter = $bytes->($at, $length);
            $interpreter =~ s/\0.*//s;
            report('interpreter', $path, $interpreter) unless $interpreter =~ m{^/nix/store/} and -e $interpreter;
        }
    }
    return unless defined $dynamic;
    my (%at, @needed);
    while ($dynamic =~ /\G(.{8})(.{8})/gs) {
        my ($tag, $value) = (unpack('Q<', $1), unpack('Q<', $2));
        last unless $tag;
        if   ($tag == 1) { push @needed, $value }
        else             { $at{$tag} = $value }
    }
    return unless defined $at{5};
    my ($load) = grep { $at{5} >= $_->[0] and $at{5} < $_->[0] + $_->[2] } @loads or return;
    my $strings = $bytes->($at{5} - $load->[0] + $load->[1], $at{10});
    my $string = sub { return substr $strings, $_[0], index($strings, "\0", $_[0]) - $_[0] };
    my $rpath = exists $at{29} ? $at{29} : $at{15};
    my @folders = defined $rpath ? split /:/, $string->($rpath) : ();
    (my $origin = $path) =~ s{/[^/]*$}{};
    for my $folder (@folders) {
        $folder =~ s/\$ORIGIN/$origin/;
        report('rpath', $path, $folder) unless $folder =~ m{^/nix/store/};
    }
    for my $name (map { $string->($_) } @needed) {
        next if $name eq 'ld-linux-x86-64.so.2' or $path =~ m{/libc\.so\.6$};
        report('library', $path, $name) unless grep { -e "$_/$name" } @folders;
    }
}

sub walk {
    my ($path) = @_;
    if (-l $path) {
        my $target = readlink $path;
        report('link', $path, $target) if !-e $path or ($target =~ m{^/} and $target !~ m{^/nix/store/});
    }
    elsif (-d $path) {
        opendir my $handle, $path or die "$path: $!\n";
        walk("$path/$_") for sort grep { $_ ne '.' and $_ ne '..' } readdir $handle;
    }
    else {
        elf($path);
        return unless -x $path;
        open my $file, '<:raw', $path or return;
        my $line = <$file>;
        report('script', $path, $1) if defined $line and $line =~ /^#!\s*(\S*)/ and $1 !~ m{^/nix/store/};
    }
}

walk($_) for @ARGV;

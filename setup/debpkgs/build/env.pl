# Merges folders into one tree of links: nixpkgs' buildEnv.
#
# A folder that only one path has becomes one link; where several have it, it is made and the rule applies to its
# entries. The same file from two paths is an error unless $ignoreCollisions is set or both are equal; so is a file where
# another path has a folder, and a path that is a file unless $ignoreSingleFileOutputs is set.
#
# Environment: out, paths, pathsToLink, extraPrefix; ignoreCollisions and ignoreSingleFileOutputs ("" or "1").
use strict;
use warnings;

my $out = $ENV{out};
my $base = $out . ($ENV{extraPrefix} || '');
my @paths = split ' ', $ENV{paths};
my @wanted = map { s{/+$}{}; $_ } split ' ', $ENV{pathsToLink} || '/';

sub under { my ($path) = @_; return grep { $_ eq '' or $path eq $_ or index($path, "$_/") == 0 } @wanted }
sub above { my ($path) = @_; return grep { index("$_/", "$path/") == 0 } @wanted }
sub entries { my ($folder) = @_; opendir my $handle, $folder or die "$folder: $!\n"; return grep { $_ ne '.' and $_ ne '..' } readdir $handle }

sub same {
    my ($one, $other) = @_;
    return 0 unless -f $one and -f $other and -s $one == -s $other and -x $one == -x $other;
    local $/;
    open my $a, '<:raw', $one   or return 0;
    open my $b, '<:raw', $other or return 0;
    return <$a> eq <$b>;
}

# the end of a chain of links
sub real {
    my ($path) = @_;
    for (1 .. 40) {
        my $target = readlink $path;
        return $path unless defined $target;
        $path = $target =~ m{^/} ? $target : $path =~ s{[^/]*$}{}r . $target;
    }
    return $path;
}

sub merge {
    my ($relative, @sources) = @_;
    # relative is "" or "/share"; sources are existing folders, the first wins
    my $inside = under($relative);
    if ($relative ne '' and $inside and @sources == 1 and $relative !~ m{^/nix-support$}) {
        symlink $sources[0], "$base$relative" or die "symlink $base$relative: $!\n";
        return;
    }
    if ($relative ne '') { mkdir "$base$relative" or die "mkdir $base$relative: $!\n" }
    my (%found, @order);
    for my $source (@sources) {
        for my $entry (sort(entries($source))) {
            push @order, $entry unless $found{$entry};
            push @{ $found{$entry} }, "$source/$entry";
        }
    }
    for my $entry (sort @order) {
        my $path = "$relative/$entry";
        next unless $inside or under($path) or above($path);
        next if $path eq '/nix-support' or $path eq '/propagated-build-inputs';
        my @places = @{ $found{$entry} };
        my @folders = grep { -d $_ } @places;
        if (@folders) {
            my ($file) = grep { !-d $_ } @places;
            die "buildEnv: $file is a file and $folders[0] is a folder\n" if $file and !$ENV{ignoreCollisions};
            my %seen;
            # two paths may show the same folder through links
            merge($path, grep { !$seen{ real($_) }++ } @folders);
            next;
        }
        next unless $inside or under($path);
        my $first = shift @places;
        for my $other (@places) {
            next if real($other) eq real($first) or $ENV{ignoreCollisions} or same($first, $other);
            die "buildEnv: $first and $other are both to be $path; set ignoreCollisions = true to take the first\n";
        }
        symlink $first, "$base$path" or die "symlink $base$path: $!\n";
    }
}

my $made = '';
for my $part (split m{/}, $base) {
    next if $part eq '';
    $made .= "/$part";
    mkdir $made unless -d $made;
}
my ($file) = grep { -f $_ } @paths;
die "buildEnv: $file is a file, and a folder is wanted\n" if $file and !$ENV{ignoreSingleFileOutputs};
merge('', grep { -d $_ } @paths);

# relocate.pl FILE OLD NEW [OLD NEW]...: replaces path names that are compiled into a shared library by longer ones.
#
# A name of /nix/store does not fit where "/usr/share/..." stood. So the new name is written into the unused rest of the
# last page of the read-only segment that holds the old one (that page is mapped whole), the segment's length grows by
# it, and every instruction that takes the old name's address (x86-64: lea REGISTER, [rip + distance]) gets a new
# distance. Dies unless each old name stands there exactly once, some instruction takes its address, and there is room.
use strict;
use warnings;

my ($path, @names) = @ARGV;
my $image = do { local $/; open my $file, '<:raw', $path or die "$path: $!\n"; <$file> };
my ($table, $size, $count) = unpack 'x32 Q< x14 v v', $image;
my @segments;
for my $i (0 .. $count - 1) {
    my $at = $table + $i * $size;
    my ($kind, $flags, $offset, $address, undef, $length) = unpack 'V V Q< Q< Q< Q<', substr $image, $at, $size;
    push @segments, { header => $at, executable => $flags & 1, writable => $flags & 2, offset => $offset, address => $address, length => $length }
        if $kind == 1;
}

# address of the name -> places of the four bytes of distance
my %wanted;
my @moves;
while (my ($old, $new) = splice @names, 0, 2) {
    my $at = index $image, "\0$old\0";
    die "$path does not hold $old\n" if $at < 0;
    die "$path holds $old more than once\n" if index($image, "\0$old\0", $at + 1) >= 0;
    $at++;
    my ($segment) = grep { $at >= $_->{offset} and $at < $_->{offset} + $_->{length} } @segments;
    die "$path: $old lies in no read-only segment\n" if !$segment or $segment->{writable};
    my $address = $at - $segment->{offset} + $segment->{address};
    $wanted{$address} = [];
    push @moves, { old => $old, new => $new, address => $address, segment => $segment };
}
for my $segment (grep { $_->{executable} } @segments) {
    my $code = substr $image, $segment->{offset}, $segment->{length};
    while ($code =~ /[\x48\x4c]\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d]/g) {
        my $at = pos $code;
        last if $at + 4 > length $code;
        my $target = $segment->{address} + $at + 4 + unpack 'l<', substr $code, $at, 4;
        push @{ $wanted{$target} }, { place => $segment->{offset} + $at, next => $segment->{address} + $at + 4 } if $wanted{$target};
        pos($code) = $at - 2;
    }
}
for my $move (@moves) {
    my $uses = $wanted{ $move->{address} };
    die "$path: no instruction takes the address of $move->{old}\n" unless @$uses;
    my $segment = $move->{segment};
    my $end = $segment->{offset} + $segment->{length};
    my $bytes = "$move->{new}\0";
    my $room = -$end % 4096;
    die "$path: no room for $move->{new}\n" if length $bytes > $room or substr($image, $end, length $bytes) =~ /[^\0]/;
    substr($image, $end, length $bytes) = $bytes;
    my $address = $segment->{address} + $segment->{length};
    $segment->{length} += length $bytes;
    substr($image, $segment->{header} + 32, 16) = pack 'Q< Q<', $segment->{length}, $segment->{length};
    substr($image, $_->{place}, 4) = pack 'l<', $address - $_->{next} for @$uses;
    print "$path: $move->{old} -> $move->{new}, used ", scalar @$uses, " times\n";
}
open my $file, '>:raw', $path or die "$path: $!\n";
print {$file} $image;
close $file or die "$path: $!\n";

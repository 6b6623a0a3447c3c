# relocate.pl FILE OLD NEW [OLD NEW]...: replaces path names that are compiled into a shared library by longer ones.
#
# A name of /nix/store does not fit where "/usr/share/..." stood. So the new name is written into the unused rest of the
# last page of the read-only segment that holds the old one (that page is mapped whole), the segment's length grows by
# it, and every instruction that takes the old name's address takes the new one's: on x86-64, lea REGISTER, [rip +
# distance] gets another distance. On arm64, add REGISTER, REGISTER, offset has the page of an adrp, which others take
# addresses from too, so it becomes a branch to code that is written behind the name. Dies unless each old name stands
# there exactly once, some instruction takes its address, and there is room.
use strict;
use warnings;

my ($path, @names) = @ARGV;
my $image = do { local $/; open my $file, '<:raw', $path or die "$path: $!\n"; <$file> };
my ($machine, $table, $size, $count) = unpack 'x18 v x12 Q< x14 v v', $image;
my @segments;
for my $i (0 .. $count - 1) {
    my $at = $table + $i * $size;
    my ($kind, $flags, $offset, $address, undef, $length) = unpack 'V V Q< Q< Q< Q<', substr $image, $at, $size;
    push @segments, { header => $at, executable => $flags & 1, writable => $flags & 2, offset => $offset, address => $address, length => $length }
        if $kind == 1;
}

# address of the name -> for each use, a function that has it take another address
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

# writes bytes into the rest of the last page of a segment, and returns their address
sub append {
    my ($segment, $bytes) = @_;
    my $end = $segment->{offset} + $segment->{length};
    die "$path: no room\n" if length $bytes > -$end % 4096 or substr($image, $end, length $bytes) =~ /[^\0]/;
    substr($image, $end, length $bytes) = $bytes;
    my $address = $segment->{address} + $segment->{length};
    $segment->{length} += length $bytes;
    substr($image, $segment->{header} + 32, 16) = pack 'Q< Q<', $segment->{length}, $segment->{length};
    return $address;
}

sub arm64 {
    my ($segment) = @_;
    # the low two bits of a number of pages, and the others, at their places in an adrp
    my $adrp = sub { my ($register, $pages) = @_; return 0x90000000 | ($pages & 3) << 29 | ($pages >> 2 & 0x7ffff) << 5 | $register };
    my $branch = sub { my ($from, $to) = @_; return 0x14000000 | ($to - $from >> 2 & 0x3ffffff) };
    my %page;    # register -> what the last adrp wrote to it
    for (my $at = 0; $at + 4 <= $segment->{length}; $at += 4) {
        my ($place, $own) = ($segment->{offset} + $at, $segment->{address} + $at);
        my $word = unpack 'V', substr $image, $place, 4;
        if (($word & 0x9f000000) == 0x90000000) {
            my $pages = ($word >> 29 & 3) | ($word >> 5 & 0x7ffff) << 2;
            $page{ $word & 31 } = ($own >> 12) + ($pages & 1 << 20 ? $pages - (1 << 21) : $pages);
        }
        elsif (($word & 0xffc00000) == 0x91000000 and my $page = $page{ $word >> 5 & 31 }) {
            my $uses = $wanted{ ($page << 12) + ($word >> 10 & 0xfff) } or next;
            push @$uses, sub {
                my ($address) = @_;
                append($segment, "\0" x (-$segment->{length} % 4));
                my $code = $segment->{address} + $segment->{length};
                my $register = $word & 31;
                append($segment, pack 'V*', $adrp->($register, ($address >> 12) - ($code >> 12)),
                    0x91000000 | ($address & 0xfff) << 10 | $register << 5 | $register, $branch->($code + 8, $own + 4));
                substr($image, $place, 4) = pack 'V', $branch->($own, $code);
            };
        }
    }
}

sub x86_64 {
    my ($segment) = @_;
    my $code = substr $image, $segment->{offset}, $segment->{length};
    while ($code =~ /[\x48\x4c]\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d]/g) {
        my $at = pos $code;
        last if $at + 4 > length $code;
        my $target = $segment->{address} + $at + 4 + unpack 'l<', substr $code, $at, 4;
        my ($place, $next) = ($segment->{offset} + $at, $segment->{address} + $at + 4);
        push @{ $wanted{$target} }, sub { substr($image, $place, 4) = pack 'l<', $_[0] - $next } if $wanted{$target};
        pos($code) = $at - 2;
    }
}

for my $segment (grep { $_->{executable} } @segments) { $machine == 183 ? arm64($segment) : x86_64($segment) }
for my $move (@moves) {
    my $uses = $wanted{ $move->{address} };
    die "$path: no instruction takes the address of $move->{old}\n" unless @$uses;
    my $address = append($move->{segment}, "$move->{new}\0");
    $_->($address) for @$uses;
    print "$path: $move->{old} -> $move->{new}, used ", scalar @$uses, " times\n";
}
open my $file, '>:raw', $path or die "$path: $!\n";
print {$file} $image;
close $file or die "$path: $!\n";

# ruby.pl FILE OUT: has a libruby look for ruby's own library below OUT. The folders stand in it one after the other, each
# with a zero byte at its end, and one more at the end of all.
use strict;
use warnings;

my ($path, $out) = @ARGV;
my $image = do { local $/; open my $file, '<:raw', $path or die "$path: $!\n"; <$file> };
$image =~ m{/usr/local/lib/site_ruby/[^\0]+\0(?:/usr/[^\0]+\0)+} or die "$path does not hold ruby's folders\n";
my ($at, $old) = ($-[0], $&);
my $new = join '', map { s{^/usr}{$out}r . "\0" } grep { m{^/usr/lib/} and -d s{^/usr}{$out}r and not m{/vendor_ruby/} } split /\0/, $old;
my $room = length($old) - length $new;
die "$path: ruby's folders below $out take ${\ -$room} bytes more than it has\n" if $room < 0;
substr($image, $at, length $old) = $new . "\0" x $room;
open my $file, '>:raw', $path or die "$path: $!\n";
print {$file} $image;
close $file or die "$path: $!\n";

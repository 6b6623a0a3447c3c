package hostile

import (
	"strconv"
	"unicode"
)

// Invisible reports whether a reader does not see a character for what it is: a control or format
// character, a space other than U+0020, one that is not assigned, any that Unicode calls ignorable,
// or the empty pattern of Braille.
func Invisible(r rune) bool { return !strconv.IsPrint(r) || r == '\u2800' || Hides(r) }

// Hides reports whether a terminal shows a character as nothing, or shows other text in another way
// because of it. Spaces do not count.
func Hides(r rune) bool {
	return r < ' ' || r >= 0x7f && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// written reports whether a character that hides belongs to ordinary text: it joins letters or
// emoji, chooses the form of an emoji, is the soft hyphen, or one of Arabic's visible ones.
func written(r rune) bool {
	return r == 0x200c || r == 0x200d || r == 0xfe0e || r == 0xfe0f || r == 0xad || unicode.Is(unicode.Prepended_Concatenation_Mark, r)
}

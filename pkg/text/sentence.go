package text

import (
	"fmt"
	"strings"
)

// Sentence is one that is kept in a file, and told in the language of whoever asks
// for it then.
type Sentence struct {
	Format string   `json:"text"` // English, with %s for each of Args
	Args   []string `json:"args,omitempty"`
}

// Keep makes a sentence. Like that of T, the first argument must be a constant
// string; its only verb is %s.
func Keep(format string, args ...any) Sentence {
	s := Sentence{Format: format}
	for _, a := range args {
		s.Args = append(s.Args, fmt.Sprint(a))
	}
	return s
}

// String tells the sentence in the language that SetLanguage chose.
func (s Sentence) String() string {
	format := s.Format
	if translated, ok := lookup(format); ok {
		format = translated
	}
	args := make([]any, len(s.Args))
	for i, a := range s.Args {
		args[i] = a
	}
	return fmt.Sprintf(format, args...)
}

// Tell tells several sentences as parts of one.
func Tell(sentences []Sentence) string {
	var parts []string
	for _, s := range sentences {
		parts = append(parts, s.String())
	}
	return strings.Join(parts, T("; "))
}

package agent

import (
	"bytes"
	"fmt"
	"io"
	"sort"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/sirupsen/logrus"
)

// NewLogger is the agent's log. Under systemd each line carries its priority
// as sd-daemon(3) has it ("<4>...") and the journal adds the rest; elsewhere
// it is logrus' text without the time.
func NewLogger(w io.Writer) *logrus.Logger {
	log := logrus.New()
	log.SetOutput(w)
	log.SetFormatter(&logrus.TextFormatter{DisableTimestamp: true})
	if ok, err := journal.StderrIsJournalStream(); err == nil && ok {
		log.SetFormatter(journalFormatter{})
	}
	return log
}

// journalFormatter writes one line per entry: the priority, the message, and
// the fields if there are any.
type journalFormatter struct{}

// Format implements logrus.Formatter.
func (journalFormatter) Format(e *logrus.Entry) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "<%d>", priority(e.Level))
	// A second line would be an entry of its own, without a priority.
	b.Write(bytes.ReplaceAll([]byte(e.Message), []byte("\n"), []byte("; ")))
	keys := make([]string, 0, len(e.Data))
	for k := range e.Data {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		fmt.Fprintf(&b, " %s=%q", k, fmt.Sprint(e.Data[k]))
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// priority maps a level to that of syslog(3).
func priority(l logrus.Level) journal.Priority {
	switch l {
	case logrus.PanicLevel, logrus.FatalLevel:
		return journal.PriCrit
	case logrus.ErrorLevel:
		return journal.PriErr
	case logrus.WarnLevel:
		return journal.PriWarning
	case logrus.InfoLevel:
		return journal.PriInfo
	}
	return journal.PriDebug
}

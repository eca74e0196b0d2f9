package tuning

import "accel/pkg/sysctl"

// OnceDefault lists the algorithms of which accel remembers that they were the
// default of new connections: the one from before it came, and those that it
// set. Nothing without a state that can be read.
func OnceDefault(h *Host) []string {
	st, err := loadState(h.Files)
	if err != nil || st == nil {
		return nil
	}
	r := st.record(KindSysctl, string(sysctl.CongestionControl))
	if r == nil {
		return nil
	}
	return append([]string{r.Original}, r.Wrote...)
}

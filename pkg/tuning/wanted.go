package tuning

import (
	"accel/pkg/sysctl"
)

// Want is one sysctl that accel wishes for.
type Want struct {
	Key   sysctl.Key
	Value string
	Floor string // where it is a floor: what each number must reach; "" where it must equal
}

// Met reports whether a value is as wished.
func (w Want) Met(value string) bool {
	return sysctl.Equal(value, w.Value) || w.Floor != "" && reaches(value, w.Floor)
}

// Wanted lists the sysctls that accel wishes for on this host: those of what is
// enabled, or those that the default would set where nothing is. The second
// result is what is enabled, nil for nothing. Where nothing can be had the list
// is empty; the error is that of a state that cannot be read.
func Wanted(h *Host) ([]Want, *Enabled, error) {
	st, err := loadState(h.Files)
	if err != nil {
		return nil, nil, err
	}
	var out []Want
	if st != nil {
		for _, r := range st.Records {
			if r.Kind == KindSysctl && r.Wanted != "" {
				out = append(out, Want{sysctl.Key(r.Name), r.Wanted, r.Floor})
			}
		}
		return out, st.Enabled, nil
	}
	f, err := h.Detect()
	if err != nil {
		return nil, nil, nil
	}
	trees, _ := h.Qdiscs.Trees() // only the sysctls are of interest
	w, err := profiles[DefaultProfile](View{Facts: f, Trees: trees}, Enabled{Algorithm: DefaultAlgorithm, Profile: DefaultProfile})
	if err != nil {
		return nil, nil, nil
	}
	for _, s := range w.Settings {
		if s.Kind == KindSysctl {
			x := Want{Key: sysctl.Key(s.Name), Value: s.Want}
			if s.Floor {
				x.Floor = s.Want
			}
			out = append(out, x)
		}
	}
	return out, nil, nil
}

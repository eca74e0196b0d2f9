package lab

import (
	"encoding/json"
	"math"
	"time"

	"accel/pkg/sysctl"
)

// Schema names the layout of Run in JSON.
const Schema = "accel.compare/1"

// Path is the network between sender and receiver. Every number holds for each
// of the two directions, except that RTT is the sum of both.
//
// Jitter is by how much the delay of one direction varies either way, evenly. No
// packet overtakes the one before it, so one that is held up holds up those
// behind it, and traffic without gaps sees mostly the upper half.
type Path struct {
	Name   string `json:"name"`   // of a named path; "" for one put together from options
	Source string `json:"source"` // where the numbers of a named path come from

	RateMbit       float64       `json:"rate_mbit"`       // 10^6 bit/s of IP packets with their Ethernet headers; 0 = not limited
	RTT            time.Duration `json:"rtt_ms"`          // without queueing; a number of milliseconds in JSON
	Jitter         time.Duration `json:"jitter_ms"`       // of one direction, see above; likewise
	LossPercent    float64       `json:"loss_percent"`    // of the packets; those with data and those with acknowledgements alike
	LossBurst      float64       `json:"loss_burst"`      // mean packets lost in a row; <= 1 = each by itself
	ReorderPercent float64       `json:"reorder_percent"` // packets that overtake those before them
	QueueBDP       float64       `json:"queue_bdp"`       // length of the queue in bandwidth-delay products; 0 = QueuePackets counts
	QueuePackets   int           `json:"queue_packets"`   // length of the queue in full packets; computed where QueueBDP is given
	ClientBuffer   int64         `json:"client_buffer"`   // the most that the receiver buffers, in bytes: the third number of its tcp_rmem; 0 = the kernel's own
	Loopback       bool          `json:"loopback"`        // both ends on one lo with netem, as the forum test has it
}

// pathJSON has the layout of Path in JSON.
type pathJSON struct {
	Name           string  `json:"name"`
	Source         string  `json:"source"`
	RateMbit       float64 `json:"rate_mbit"`
	RTT            float64 `json:"rtt_ms"`
	Jitter         float64 `json:"jitter_ms"`
	LossPercent    float64 `json:"loss_percent"`
	LossBurst      float64 `json:"loss_burst"`
	ReorderPercent float64 `json:"reorder_percent"`
	QueueBDP       float64 `json:"queue_bdp"`
	QueuePackets   int     `json:"queue_packets"`
	ClientBuffer   int64   `json:"client_buffer,omitempty"`
	Loopback       bool    `json:"loopback"`
}

// MarshalJSON writes durations as numbers of milliseconds.
func (p Path) MarshalJSON() ([]byte, error) {
	return json.Marshal(pathJSON{
		p.Name, p.Source, p.RateMbit, milliseconds(p.RTT), milliseconds(p.Jitter), p.LossPercent,
		p.LossBurst, p.ReorderPercent, p.QueueBDP, p.QueuePackets, p.ClientBuffer, p.Loopback,
	})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (p *Path) UnmarshalJSON(data []byte) error {
	var j pathJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	*p = Path{
		j.Name, j.Source, j.RateMbit, duration(j.RTT), duration(j.Jitter), j.LossPercent,
		j.LossBurst, j.ReorderPercent, j.QueueBDP, j.QueuePackets, j.ClientBuffer, j.Loopback,
	}
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func duration(ms float64) time.Duration {
	return time.Duration(math.Round(ms * float64(time.Millisecond)))
}

// Arm is what is compared with another: an algorithm, or an algorithm together
// with sysctls of the sender's namespace and metrics of its route.
type Arm struct {
	Name        string            `json:"name"`
	Algorithm   string            `json:"algorithm"`    // kernel name, set per socket
	Qdisc       string            `json:"qdisc"`        // at the root of the sender's link; "" = the kernel's default there
	Settings    []sysctl.KeyValue `json:"settings"`     // written in the sender's own namespace
	InitialCwnd int               `json:"initial_cwnd"` // segments, of the sender's route; 0 = the kernel's
	InitialRwnd int               `json:"initial_rwnd"` // segments; 0 = the kernel's
	RTOMin      int               `json:"rto_min"`      // ms, the least retransmission timeout; 0 = the kernel's
	// NotCompared names what the arm's file asks for and a namespace cannot
	// have: keys that exist only for the whole host.
	NotCompared []string `json:"not_compared"`
	Source      string   `json:"source"` // base name of the file it was read from; "" = an algorithm alone
}

type settingJSON struct {
	Key   sysctl.Key `json:"key"`
	Value string     `json:"value"`
}

// MarshalJSON writes the settings with lower case members.
func (a Arm) MarshalJSON() ([]byte, error) {
	type plain Arm
	settings := make([]settingJSON, 0, len(a.Settings))
	for _, s := range a.Settings {
		settings = append(settings, settingJSON(s))
	}
	if a.NotCompared == nil {
		a.NotCompared = []string{}
	}
	return json.Marshal(struct {
		plain
		Settings []settingJSON `json:"settings"`
	}{plain: plain(a), Settings: settings})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (a *Arm) UnmarshalJSON(data []byte) error {
	type plain Arm
	j := struct {
		*plain
		Settings []settingJSON `json:"settings"`
	}{plain: (*plain)(a)}
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	a.Settings = nil
	for _, s := range j.Settings {
		a.Settings = append(a.Settings, sysctl.KeyValue(s))
	}
	return nil
}

// Plan is everything that decides what a comparison measures.
type Plan struct {
	Arms    []Arm         `json:"arms"`
	Paths   []Path        `json:"paths"`   // the cells of a sweep; one where nothing is swept
	Sweep   string        `json:"sweep"`   // which number of the paths is swept: "loss", "rtt", "rate", "queue", "jitter", "client-buffer", or ""
	Sizes   []int64       `json:"sizes"`   // bytes per flow
	Flows   int           `json:"flows"`   // connections at once, each transferring the size
	Rounds  int           `json:"rounds"`  // measured transfers of each arm, path and size
	Against string        `json:"against"` // algorithm of a competing long flow; "" = none
	Seed    uint64        `json:"seed"`    // of the order of arms, and of the emulated chances where the kernel lets us
	Limit   time.Duration `json:"limit_seconds"`
}

// MarshalJSON writes the limit as a number of seconds, and lists that are empty
// as such.
func (p Plan) MarshalJSON() ([]byte, error) {
	p.Arms = append([]Arm{}, p.Arms...)
	p.Paths = append([]Path{}, p.Paths...)
	p.Sizes = append([]int64{}, p.Sizes...)
	type plain Plan
	return json.Marshal(struct {
		plain
		Limit float64 `json:"limit_seconds"`
	}{plain(p), p.Limit.Seconds()})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (p *Plan) UnmarshalJSON(data []byte) error {
	type plain Plan
	j := struct {
		*plain
		Limit float64 `json:"limit_seconds"`
	}{plain: (*plain)(p)}
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	p.Limit = duration(j.Limit * 1000)
	return nil
}

// Sample is the state of the sending socket at one moment of a transfer.
type Sample struct {
	At           float64 `json:"at"`            // seconds since the request
	Cwnd         int     `json:"cwnd"`          // segments
	RTT          float64 `json:"rtt"`           // milliseconds, smoothed
	DeliveryRate float64 `json:"delivery_rate"` // bit/s, the kernel's latest measurement; 0 = none yet
	PacingRate   float64 `json:"pacing_rate"`   // bit/s; 0 = not paced
	Bytes        int64   `json:"bytes"`         // acknowledged
	Retrans      int     `json:"retrans"`       // segments sent again so far
}

// Transfer is one transfer of one flow, measured from the sending socket's own
// account and, for times and bytes, at the receiver.
type Transfer struct {
	Path     int     `json:"path"`     // index in Plan.Paths
	Arm      int     `json:"arm"`      // index in Plan.Arms
	Size     int64   `json:"size"`     // bytes asked for
	Round    int     `json:"round"`    // from 0; of a warm-up 0
	Flow     int     `json:"flow"`     // from 0; below Plan.Flows
	Warmup   bool    `json:"warmup"`   // not to be counted
	Finished bool    `json:"finished"` // all bytes arrived within Plan.Limit
	Bytes    int64   `json:"bytes"`    // that arrived
	Seconds  float64 `json:"seconds"`  // from before the connection was opened to the last byte, or to the limit
	Goodput  float64 `json:"goodput"`  // bit/s: bytes that arrived by Seconds

	RetransShare float64 `json:"retrans_share"` // of the payload bytes sent, those sent again; 0 to 1
	SRTT         float64 `json:"srtt"`          // milliseconds, smoothed, at the end
	MinRTT       float64 `json:"min_rtt"`       // milliseconds
	LoadedRTT    float64 `json:"loaded_rtt"`    // milliseconds, mean of the samples after the first ten round trips; 0 = too short to say
	FirstByte    float64 `json:"first_byte"`    // seconds until the first byte arrived, the handshake included
	To90         float64 `json:"to90"`          // seconds until the receiver first had 90 % of its final rate; 0 = too short to say
	// Share is what a competing flow of Plan.Against got of all bytes that
	// arrived while this transfer ran: with one flow each, 0.5 is fair. nil =
	// nobody competed.
	Share     *float64 `json:"share"`
	Algorithm string   `json:"algorithm"` // what the sending socket really had
	Samples   []Sample `json:"samples"`   // of one transfer per arm, path and size only
	Error     string   `json:"error"`     // why there is nothing measured; "" = measured
}

// Run is a comparison and everything needed to judge and repeat it.
type Run struct {
	Schema       string    `json:"schema"` // "accel.compare/1"
	Version      string    `json:"version"`
	Command      string    `json:"command"` // the line that does the same again
	Started      time.Time `json:"started"`
	Ended        time.Time `json:"ended"`
	Plan         Plan      `json:"plan"`
	Kernel       string    `json:"kernel"`       // release
	Distribution string    `json:"distribution"` // its pretty name
	Machine      string    `json:"machine"`      // virtualization and architecture
	CPUs         int       `json:"cpus"`
	MemoryBytes  uint64    `json:"memory_bytes"`
	// TimerLate is by how many milliseconds this machine's timers are late, at
	// least 1 and at most 10: what passes in that time, the bottleneck may send at
	// once. Where it is many, the machine was busy or is emulated, and its numbers
	// are rough.
	TimerLate float64    `json:"timer_late_ms"`
	Transfers []Transfer `json:"transfers"`
	Complete  bool       `json:"complete"` // nothing of the plan is missing
}

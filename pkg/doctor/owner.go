package doctor

import (
	"regexp"
	"strings"

	"accel/pkg/text"
)

// owner is whom a process belongs to, as its cgroup tells. At most one of unit
// and container is set.
type owner struct {
	unit    string // a unit of systemd, such as "nginx.service"
	user    bool   // it is a user's own: of their manager, or of their runtime
	runtime string // of a container: "docker", "podman", "containerd", "cri-o", "lxc", "nspawn"
	id      string // of the container, as its runtime takes it
	pod     bool   // the container belongs to a pod of Kubernetes
}

// ownerOf reads a cgroup's path, the way systemd's cg_path_get_unit does, which
// is from the root: below a unit, a program may make cgroups of any name.
func ownerOf(cgroup string) owner {
	elems := strings.Split(strings.TrimPrefix(cgroup, "/"), "/")
	if o := containerOf(elems); o.runtime != "" {
		return o
	}
	unit, rest := firstUnit(elems)
	if !isUnit(unit) {
		return owner{}
	}
	if strings.HasPrefix(unit, "user@") {
		if inner, _ := firstUnit(rest); isUnit(inner) {
			return owner{unit: inner, user: true}
		}
	}
	return owner{unit: unit}
}

// firstUnit skips the slices.
func firstUnit(elems []string) (unit string, rest []string) {
	for len(elems) > 0 && strings.HasSuffix(elems[0], ".slice") {
		elems = elems[1:]
	}
	if len(elems) == 0 {
		return "", nil
	}
	// systemd puts a "_" before a name that would look like something else.
	return strings.TrimPrefix(elems[0], "_"), elems[1:]
}

var (
	// What systemd allows in the name of a unit (systemd.unit(5)), which is also
	// safe to paste into a shell within quotes.
	unitName = regexp.MustCompile(`\A[A-Za-z0-9:_.\\@-]{1,255}\z`)
	// Containers of the runtimes that number them.
	numbered = regexp.MustCompile(`\A(?:(docker|libpod|crio|cri-containerd|nerdctl)-)?([0-9a-f]{64})(?:\.scope)?\z`)
	// Those that give them names.
	containerName = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}\z`)
)

func isUnit(s string) bool {
	name, ok := strings.CutSuffix(s, ".service")
	if !ok {
		name, ok = strings.CutSuffix(s, ".scope")
	}
	return ok && name != "" && unitName.MatchString(s)
}

// runtimes by the prefix of their cgroups.
var runtimes = map[string]string{
	"docker": "docker", "libpod": "podman", "crio": "cri-o", "cri-containerd": "containerd", "nerdctl": "containerd",
}

// containerOf recognises the outermost container.
func containerOf(elems []string) owner {
	first, second := elems[0], ""
	if len(elems) > 1 {
		second = elems[1]
	}
	name, ok := strings.CutPrefix(first, "lxc.payload.")
	if !ok && (first == "lxc" || first == "lxc.payload") {
		name, ok = second, true
	}
	if ok && containerName.MatchString(name) {
		return owner{runtime: "lxc", id: name}
	}
	o := owner{pod: strings.HasPrefix(first, "kubepods")}
	for i, e := range elems {
		if m := numbered.FindStringSubmatch(e); m != nil {
			o.id = m[2][:12]
			switch {
			case m[1] != "":
				o.runtime = runtimes[m[1]]
			case i == 1 && first == "docker":
				o.runtime = "docker"
			case o.pod:
				o.runtime = "containerd"
			default:
				return owner{}
			}
			return o
		}
		if name, ok := strings.CutPrefix(e, "systemd-nspawn@"); ok {
			if name, ok = strings.CutSuffix(name, ".service"); ok && containerName.MatchString(name) {
				return owner{runtime: "nspawn", id: name}
			}
		}
		if strings.HasPrefix(e, "user@") {
			o.user = true
		} else if isUnit(e) && !o.pod {
			return owner{} // what lies below is its own affair
		}
	}
	return owner{}
}

// name names the owner for people; "" if there is none.
func (o owner) name() string {
	switch {
	case o.pod:
		return text.T("a pod's container %s", o.id)
	case o.runtime != "":
		return o.runtime + " " + o.id
	}
	return strings.TrimSuffix(o.unit, ".service")
}

// restart is the command that starts what belongs to the owner anew, in network
// namespaces of its own made anew; "" if accel knows none.
func (o owner) restart() string {
	switch {
	case o.pod:
		return ""
	case o.runtime == "docker", o.runtime == "podman":
		return o.runtime + " restart " + o.id
	case o.runtime == "nspawn":
		return "systemctl restart systemd-nspawn@" + o.id
	case o.login():
		return ""
	case o.runtime != "" || !strings.HasSuffix(o.unit, ".service") || o.unit[0] == '-':
		return ""
	case o.user:
		return "systemctl --user restart " + shellWord(strings.TrimSuffix(o.unit, ".service"))
	}
	return "systemctl restart " + shellWord(strings.TrimSuffix(o.unit, ".service"))
}

// login: the process serves a login. Without libpam-systemd those of ssh stay in
// its unit, and Debian's (KillMode=process) leaves them alone when it restarts.
func (o owner) login() bool {
	return strings.HasPrefix(o.unit, "session-") && strings.HasSuffix(o.unit, ".scope") ||
		o.unit == "ssh.service" || o.unit == "sshd.service" || strings.HasPrefix(o.unit, "ssh@") || strings.HasPrefix(o.unit, "sshd@")
}

// shellWord is for names of units, in which a backslash is all that a shell would
// take for something else.
func shellWord(unit string) string {
	if strings.Contains(unit, `\`) {
		return "'" + unit + "'"
	}
	return unit
}

// advice says what makes the connections of a process of the owner new ones.
func (o owner) advice() string {
	switch cmd := o.restart(); {
	case cmd != "" && o.user:
		return text.T("as that user: %s", cmd)
	case cmd != "":
		return cmd
	case o.pod:
		return text.T("delete the pod; what made it makes it anew")
	case o.runtime != "":
		return text.T("restart the container %s (%s)", o.id, o.runtime)
	case o.login():
		return text.T("log in again")
	case o.unit == "init.scope":
		return text.T("reboot")
	}
	return text.T("restart the program")
}

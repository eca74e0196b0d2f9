package doctor

import (
	"regexp"
	"strings"
	"testing"
)

func TestOwnerOf(t *testing.T) {
	const id = "3f2a1b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708"
	for cgroup, want := range map[string]struct {
		owner
		restart string
	}{
		"/system.slice/nginx.service":                                                                {owner{unit: "nginx.service"}, "systemctl restart nginx"},
		"/system.slice/system-getty.slice/getty@tty1.service":                                        {owner{unit: "getty@tty1.service"}, "systemctl restart getty@tty1"},
		"/system.slice/foo.service/worker/nginx.service":                                             {owner{unit: "foo.service"}, "systemctl restart foo"},
		"/system.slice/foo.service/docker-" + id + ".scope":                                          {owner{unit: "foo.service"}, "systemctl restart foo"},
		`/system.slice/dev\x2dx.service`:                                                             {owner{unit: `dev\x2dx.service`}, `systemctl restart 'dev\x2dx'`},
		"/system.slice/_cpu.service":                                                                 {owner{unit: "cpu.service"}, "systemctl restart cpu"},
		"/system.slice/ssh.service":                                                                  {owner{unit: "ssh.service"}, ""},
		"/system.slice/system-ssh.slice/ssh@0-192.0.2.1:22-192.0.2.9:4711.service":                   {owner{unit: "ssh@0-192.0.2.1:22-192.0.2.9:4711.service"}, ""},
		"/user.slice/user-0.slice/session-3.scope":                                                   {owner{unit: "session-3.scope"}, ""},
		"/user.slice/user-1000.slice/user@1000.service/app.slice/syncthing.service":                  {owner{unit: "syncthing.service", user: true}, "systemctl --user restart syncthing"},
		"/user.slice/user-1000.slice/user@1000.service":                                              {owner{unit: "user@1000.service"}, "systemctl restart user@1000"},
		"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id + ".scope/container": {owner{runtime: "podman", id: "3f2a1b4c5d6e", user: true}, "podman restart 3f2a1b4c5d6e"},
		"/init.scope": {owner{unit: "init.scope"}, ""},

		"/system.slice/docker-" + id + ".scope":                            {owner{runtime: "docker", id: "3f2a1b4c5d6e"}, "docker restart 3f2a1b4c5d6e"},
		"/system.slice/docker-" + id + ".scope/system.slice/nginx.service": {owner{runtime: "docker", id: "3f2a1b4c5d6e"}, "docker restart 3f2a1b4c5d6e"},
		"/docker/" + id: {owner{runtime: "docker", id: "3f2a1b4c5d6e"}, "docker restart 3f2a1b4c5d6e"},
		"/machine.slice/libpod-" + id + ".scope/container": {owner{runtime: "podman", id: "3f2a1b4c5d6e"}, "podman restart 3f2a1b4c5d6e"},
		"/libpod_parent/libpod-" + id:                      {owner{runtime: "podman", id: "3f2a1b4c5d6e"}, "podman restart 3f2a1b4c5d6e"},
		"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-" + id + ".scope": {owner{runtime: "containerd", id: "3f2a1b4c5d6e", pod: true}, ""},
		"/kubepods/besteffort/pod1/" + id:                              {owner{runtime: "containerd", id: "3f2a1b4c5d6e", pod: true}, ""},
		"/kubepods.slice/kubepods-pod1.slice/crio-" + id + ".scope":    {owner{runtime: "cri-o", id: "3f2a1b4c5d6e", pod: true}, ""},
		"/lxc.payload.web":                                             {owner{runtime: "lxc", id: "web"}, ""},
		"/lxc.payload.web/system.slice/nginx.service":                  {owner{runtime: "lxc", id: "web"}, ""},
		"/lxc.payload/web/init.scope":                                  {owner{runtime: "lxc", id: "web"}, ""},
		"/lxc/101/ns":                                                  {owner{runtime: "lxc", id: "101"}, ""},
		"/machine.slice/systemd-nspawn@web.service/payload/init.scope": {owner{runtime: "nspawn", id: "web"}, "systemctl restart systemd-nspawn@web"},

		"":                               {},
		"/":                              {},
		"relative":                       {},
		"/x/y":                           {},
		"/" + id:                         {},
		"/system.slice":                  {},
		"/system.slice/.service":         {},                              // a unit has a name before its type
		"/system.slice/-a.service":       {owner{unit: "-a.service"}, ""}, // and would be an option
		"/lxc/":                          {},
		"/lxc.payload.":                  {},
		"/lxc.payload.a b":               {},
		"/lxc.payload.-rf":               {},
		"/docker/short":                  {},
		"/docker/x/" + id:                {},
		"//////":                         {},
		"/system.slice/a;b.service":      {},
		"/system.slice/a b.service":      {},
		"/system.slice/$(x).service":     {},
		"/system.slice/\x1b[31m.service": {},
		"/system.slice/a\nb.service":     {},
		"/system.slice/'.service":        {},
		"/machine.slice/systemd-nspawn@$(x).service": {},
		"/" + strings.Repeat("a", 300) + ".service":  {},
	} {
		got := ownerOf(cgroup)
		if got != want.owner {
			t.Errorf("%q: %+v, want %+v", cgroup, got, want.owner)
		}
		if r := got.restart(); r != want.restart {
			t.Errorf("%q: restart %q, want %q", cgroup, r, want.restart)
		}
		if got.advice() == "" {
			t.Errorf("%q: no advice", cgroup)
		}
	}
}

// Whatever somebody calls a cgroup, the command that doctor proposes is one
// command, of known words and one name.
func FuzzOwnerOf(f *testing.F) {
	f.Add("/system.slice/nginx.service")
	f.Add(`/user.slice/user-1000.slice/user@1000.service/app.slice/a\x2db.service`)
	f.Add("/docker/" + strings.Repeat("0", 64))
	f.Add("/lxc.payload.web/x")
	f.Add("/machine.slice/systemd-nspawn@web.service/payload")
	command := regexp.MustCompile(`\A(docker restart [0-9a-f]{12}|podman restart [0-9a-f]{12}|systemctl (--user )?restart ([A-Za-z0-9:_.@][A-Za-z0-9:_.@-]*|'[A-Za-z0-9:_.@\\][A-Za-z0-9:_.@\\-]*'))\z`)
	f.Fuzz(func(t *testing.T, cgroup string) {
		o := ownerOf(cgroup)
		if r := o.restart(); r != "" && !command.MatchString(r) {
			t.Errorf("%q: %q", cgroup, r)
		}
		if strings.ContainsFunc(o.name()+o.advice(), func(r rune) bool { return r < ' ' || r == 0x7f || r == '$' || r == ';' }) {
			t.Errorf("%q: %q, %q", cgroup, o.name(), o.advice())
		}
	})
}

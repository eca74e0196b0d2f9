package kernel

import (
	"os"
	"strconv"
	"syscall"
)

// maxProcesses bounds how many processes are asked for their namespace.
const maxProcesses = 32768

// otherNetns counts the network namespaces besides this thread's own that hold a
// process or have a name. Without the right to look at other people's processes
// the count is of what can be seen; -1 if that is none.
func otherNetns() int {
	own, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return -1
	}
	ownInode := inode(own)
	seen := map[uint64]bool{}
	hidden := false

	dir, err := os.Open("/proc")
	if err != nil {
		return -1
	}
	names, _ := dir.Readdirnames(-1)
	dir.Close()
	asked := 0
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		if asked++; asked > maxProcesses {
			hidden = true
			break
		}
		target, err := os.Readlink("/proc/" + name + "/ns/net")
		switch {
		case err == nil:
			// "net:[4026531833]"
			if len(target) > 6 {
				if n, err := strconv.ParseUint(target[5:len(target)-1], 10, 64); err == nil {
					seen[n] = true
				}
			}
		case os.IsPermission(err):
			hidden = true
		}
		// Anything else: the process is gone, or a zombie.
	}
	for _, place := range []string{"/run/netns", "/run/docker/netns"} {
		entries, err := os.ReadDir(place)
		if os.IsPermission(err) {
			hidden = true
		}
		for _, e := range entries {
			// A name whose namespace is gone is a plain file on tmpfs.
			info, err := os.Stat(place + "/" + e.Name())
			if err == nil && isNetns(place+"/"+e.Name()) {
				seen[inode(info)] = true
			}
		}
	}
	delete(seen, ownInode)
	if len(seen) == 0 && hidden {
		return -1
	}
	return len(seen)
}

func inode(info os.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}

// isNetns says whether a file is a namespace: those lie on their own file system.
func isNetns(name string) bool {
	const nsfsMagic = 0x6e736673 // linux/magic.h
	var st syscall.Statfs_t
	return syscall.Statfs(name, &st) == nil && int64(st.Type) == nsfsMagic
}

// containerManagers leave these behind where they run.
var containerManagers = []struct {
	name  string
	paths []string
}{
	{"containerd", []string{"/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock"}},
	{"cri-o", []string{"/run/crio/crio.sock"}},
	{"docker", []string{"/run/docker.sock", "/run/docker/netns"}},
	{"incus", []string{"/run/incus", "/var/lib/incus/unix.socket"}},
	{"kubelet", []string{"/var/lib/kubelet/kubeadm-flags.env", "/var/lib/kubelet/config.yaml", "/var/lib/kubelet/pods", "/var/lib/rancher/k3s/agent"}},
	{"libvirt-lxc", []string{"/run/libvirt/lxc"}},
	{"lxc", []string{"/run/lxc", "/var/lib/lxc/lxc-monitord.log"}},
	{"lxd", []string{"/var/snap/lxd/common/lxd/unix.socket", "/var/lib/lxd/unix.socket"}},
	{"openvz", []string{"/proc/bc"}},
	{"podman", []string{"/run/podman/podman.sock", "/run/libpod", "/run/containers/storage"}},
	{"proxmox", []string{"/etc/pve/local"}},
	{"systemd-nspawn", []string{"/run/systemd/nspawn"}},
}

// containers names the container managers seen, sorted.
func containers(t *Tree) []string {
	seen := []string{}
	for _, m := range containerManagers {
		for _, p := range m.paths {
			if t.Exists(p) {
				seen = append(seen, m.name)
				break
			}
		}
	}
	return seen
}

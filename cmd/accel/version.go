package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v2"
)

// version is set when a package is built: -ldflags "-X main.version=1.0".
var version string

// versionString is the version of this program; of one that was built from a
// checkout it is the commit, as far as it is known.
func versionString() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "devel-" + s.Value[:12]
		}
	}
	return "devel"
}

// version is the command `accel version`.
func (a *accel) version(*cli.Context) error {
	return write(a.out, fmt.Appendf(nil, "accel %s (%s, %s/%s)\n", versionString(), runtime.Version(), runtime.GOOS, runtime.GOARCH))
}

// Package agent is what accel.service runs, and accel's hand on systemd.
//
// Run re-asserts accel's settings when the host has booted, and then watches:
// links that come up, and values that drift. It decides nothing about the host
// itself; pkg/tuning does. What it adds is patience: when to look, what to say
// once, and when to stop fighting.
package agent

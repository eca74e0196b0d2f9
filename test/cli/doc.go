// Package cli tests the built program by its command line.
//
// The tests run in network and mount namespaces of their own, with their own
// /etc, /run and /var/lib, so that nothing they do reaches the host. Without
// root, what needs them is skipped.
package cli

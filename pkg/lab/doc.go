// Package lab measures algorithm against algorithm on an emulated path, in
// three private, unnamed network namespaces: sender, router, receiver. Nothing
// of the host's network or sysctls is touched, and nothing is left behind: the
// two ends are children of this process, the namespaces live as long as they
// and their parent do.
package lab

// Package cluster has no code but tests: of the files of deploy/ for Kubernetes, in a cluster
// of real parts. The parts are programs that the script build compiles and fetches; nothing of
// them is a dependency of this module.
//
// TestObjects and TestAdmission run etcd and the API server alone. TestClaims adds the
// controllers, and TestRouting HAProxy, the name server and two servers of this machine.
// TestNode boots a node in a virtual machine, whose processor is emulated.
//
// ./check --cluster runs them in namespaces of their own for the network, mounts and processes,
// which end with them. On two processors with a load of 30 to 40 from other work, the parts of
// the control plane are ready after 10 s, TestObjects and TestAdmission take 30 s each,
// TestClaims and TestRouting 3 minutes each. To compile everything takes 16 minutes of two
// processors, and took 64 minutes with that load at the lowest priority.
package cluster

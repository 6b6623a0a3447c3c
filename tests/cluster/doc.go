// Package cluster has no code but tests: of the files of deploy/ for Kubernetes, in a cluster
// of real parts. The parts are programs that the script build compiles and fetches; nothing of
// them is a dependency of this module.
//
// TestObjects and TestAdmission run etcd and the API server alone. TestClaims adds the controllers.
// TestNodes has two nodes: each has containerd, a kubelet and kube-proxy in namespaces and a
// control group of its own, under this machine's kernel. The nodes need Linux 6.3 for pods in
// user namespaces. They ran with control groups of version 1; of version 2, node/start knows
// what containers of nodes do elsewhere, and it was not tried.
//
// ./check --cluster runs them in namespaces for the network, mounts and processes, which end
// with them. On two processors with a load of 17 to 27 from other work, the API server is ready
// after 5 s, the nodes after 9 s more, and TestNodes takes 8 minutes, most of them for rollouts.
// To compile everything takes 16 minutes of two processors.
package cluster

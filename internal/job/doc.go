// Package job is the domain: what a delivery is, what is stored of it, and the decision whether its caller starts the
// downstream work. It does no I/O. Stores implement [Store]; everything they answer is decided by [Decide].
package job

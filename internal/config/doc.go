// Package config fills in the flags that a command line leaves out: from the environment, or else from a YAML file. It
// also has the flag values that more than one command needs.
//
// The file has one mapping per section; its keys are flag names:
//
//	serve:
//	  listen: 0.0.0.0:50051
//	  max-payload-bytes: 2097152
//	client:
//	  server: jobonce.internal:50051
package config

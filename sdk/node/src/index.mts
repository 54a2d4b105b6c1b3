// The same objects as for require: an error of one is an error of the other.
export * from './index.js'

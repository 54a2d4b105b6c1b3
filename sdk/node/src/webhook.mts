export * from './webhook.js'

// Worker threads with shared memory.
const { Worker } = require('node:worker_threads')
const shared = new SharedArrayBuffer(4)
const source = `
  const { workerData, parentPort } = require('node:worker_threads')
  for (let i = 0; i < 1000; i++) Atomics.add(new Int32Array(workerData), 0, 1)
  parentPort.postMessage('done')`
const run = () => new Promise((resolve, reject) => {
  const worker = new Worker(source, { eval: true, workerData: shared })
  worker.once('message', resolve)
  worker.once('error', reject)
})
Promise.all([run(), run(), run(), run()]).then(() => {
  const count = new Int32Array(shared)[0]
  if (count !== 4000) throw new Error(`count ${count}`)
  console.log('ok')
})

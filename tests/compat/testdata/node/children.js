// Children: pipes, a shell, fork with its channel, statuses and signals.
const assert = require('node:assert')
const fs = require('node:fs')
const { execFileSync, fork, spawn, spawnSync } = require('node:child_process')
assert.equal(execFileSync('tr', ['a-z', 'A-Z'], { input: 'shout' }).toString(), 'SHOUT')
assert.equal(spawnSync('sh', ['-c', 'exit 7']).status, 7)
fs.writeFileSync('child.js', "process.on('message', m => { process.send(m * 2); process.disconnect() })")
const child = fork('./child.js')
child.send(21)
child.once('message', answer => {
  assert.equal(answer, 42)
  const sleeper = spawn('sleep', ['60'])
  sleeper.once('exit', (code, signal) => {
    assert.equal(signal, 'SIGTERM')
    console.log('ok')
  })
  sleeper.kill()
})

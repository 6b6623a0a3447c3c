// A server on the loopback, and fetch to it; names are not resolved.
const assert = require('node:assert')
const dns = require('node:dns/promises')
const http = require('node:http')
const server = http.createServer((request, response) => response.end(`served ${request.url}`))
server.listen(0, '127.0.0.1', async () => {
  const answers = await Promise.all(Array.from({ length: 20 }, async (_, n) =>
    (await fetch(`http://127.0.0.1:${server.address().port}/${n}`)).text()))
  assert.deepEqual(answers, answers.map((_, n) => `served /${n}`))
  await assert.rejects(dns.lookup('nowhere.invalid'))
  assert.equal((await dns.lookup('localhost')).address.length > 2, true)
  server.close()
  server.closeAllConnections()
  console.log('ok')
})

// A cluster of four processes that serve one port, and datagrams with the options
// that programs set.
const cluster = require('node:cluster');
const fs = require('node:fs');
const dgram = require('node:dgram');
const http = require('node:http');

// A worker closes no connection that the client may use again: where every instruction is
// emulated, more than the usual 5 s can pass between two requests.
fs.writeFileSync('worker.js', `
require('node:http').createServer({ keepAliveTimeout: 0 }, (_, answer) => answer.end('served')).listen(process.env.PORT, '127.0.0.1');
`);
cluster.setupPrimary({ exec: 'worker.js' });
const port = 20000;
let ready = 0;
for (let count = 0; count < 4; count++) {
  cluster.fork({ PORT: port }).on('listening', async () => {
    if (++ready < 4) return;
    const agent = new http.Agent({ keepAlive: true, maxSockets: 50 });
    const get = () => new Promise((resolve, reject) => {
      http.get({ port, host: '127.0.0.1', agent }, (answer) => {
        let text = '';
        answer.on('data', (part) => { text += part; });
        answer.on('end', () => resolve(text));
      }).on('error', reject);
    });
    const answers = await Promise.all(Array.from({ length: 200 }, get));
    if (!answers.every((text) => text === 'served')) throw new Error(answers.join());
    agent.destroy();
    for (const worker of Object.values(cluster.workers)) worker.kill();
    const socket = dgram.createSocket({ type: 'udp4', reuseAddr: true, recvBufferSize: 65536 });
    socket.bind(0, '127.0.0.1', () => {
      socket.setBroadcast(true);
      socket.setTTL(3);
      socket.send('datagram', socket.address().port, '127.0.0.1');
    });
    socket.on('message', (text) => {
      socket.close();
      console.log(`${text}` === 'datagram' ? 'ok' : text);
    });
  });
}

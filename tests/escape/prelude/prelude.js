// What every attempt in JavaScript may use. The suite puts its variables
// before this text and the attempt's code, as the body of an async function
// that is handed to attempt(), after it.
var fs = require('node:fs'), net = require('node:net');

// Writes all of it, also where the descriptor is a pipe that does not wait.
var put = (descriptor, data) => {
  let rest = Buffer.from(data);
  while (rest.length > 0) {
    try {
      rest = rest.subarray(fs.writeSync(descriptor, rest));
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
    }
  }
};

var note = (word, text = '') => put(2, `${word} ${TOKEN} ${text}\n`);

// The attempt has succeeded.
var escaped = (what) => note('escaped', what);

// This machine lacks what the attempt is about, so that it would show nothing.
var lacking = (what) => note('lacking', what);

// Prints what was read: a secret in it is evidence.
var show = (data) => put(1, `${data}`.slice(0, 16384) + '\n');

// A refusal is the kernel's answer; anything else is a mistake in the attempt.
var refusal = (error) => typeof error.code === 'string' && error.code.startsWith('E') && 'syscall' in error;

// Goes on after a refusal.
var trying = (code) => {
  try {
    code();
  } catch (error) {
    if (!refusal(error)) throw error;
  }
};

// Resolves with what a socket says until it ends, at most two seconds.
var hear = (options, say = '') => new Promise((resolve, reject) => {
  const socket = net.connect(options, () => socket.write(say));
  let heard = '';
  socket.setTimeout(2000, () => socket.destroy());
  socket.on('data', (data) => { heard += data; });
  socket.on('close', () => resolve(heard));
  socket.on('error', reject);
});

var sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Frames that only an agent may send.
var forged = () => Buffer.from(FORGED, 'hex');

var attempt = (code) => {
  note('started');
  return code().catch((error) => {
    if (!refusal(error)) {
      note('mistake', error.stack);
      process.exit(70);
    }
    note('refused', error.message);
  }).then(() => note('tried'));
};

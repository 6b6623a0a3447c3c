// Node.js reads this at each start: the tools load when code uses them.
'use strict';
Object.defineProperty(globalThis, 'tools', { get: () => require('./tools.js'), configurable: true, enumerable: false });

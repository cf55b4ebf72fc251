#!/usr/bin/env node
// The npm build of solc with the manners of the native compiler, so that forge compiles without fetching one.
const fs = require('fs'), path = require('path'), solc = require('solc');

const words = process.argv.slice(2);
const base = words.includes('--base-path') ? words[words.indexOf('--base-path') + 1] : process.cwd();

function readSource(name) {
  try {
    return {contents: fs.readFileSync(path.resolve(base, name), 'utf8')};
  } catch (error) {
    return {error: String(error)};
  }
}

if (words.includes('--version')) {
  console.log('solc, the solidity compiler commandline interface');
  console.log('Version: ' + solc.version().replace('.Emscripten.clang', '.Linux.g++'));
} else {
  process.stdout.write(solc.compile(fs.readFileSync(0, 'utf8'), {import: readSource}));
}

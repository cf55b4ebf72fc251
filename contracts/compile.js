// Compiles the contracts with the npm build of solc into artefacts that are committed, so that nothing in Python needs
// npm. `node compile.js` writes them to their places; `node compile.js FOLDER NAME` writes one there, to be compared.
const crypto = require('crypto'), fs = require('fs'), path = require('path'), solc = require('solc');
const settings = require('./settings.json');

const repository = path.join(__dirname, '..');
const tests = 'tests/disputes/coordinators/ethereum';
const artefacts = [
  {name: 'Coordinator', unit: 'src/Coordinator.sol', folders: ['src'], place: 'src/tallystick/disputes/coordinators/ethereum'},
  {name: 'Harness', unit: 'harness/Harness.sol', folders: ['src', 'harness'], place: tests},
  {name: 'Driver', unit: 'harness/Driver.sol', folders: ['src', 'harness'], place: tests},
];

function readSource(name) {
  try {
    return {contents: fs.readFileSync(path.join(__dirname, name), 'utf8')};
  } catch (error) {
    return {error: String(error)};
  }
}

/** The harness runs on a test's own node, which has no limit on the size of code. */
function isHarnessTooLarge(message) {
  return message.errorCode === '5574' && message.sourceLocation.file.startsWith('harness/');
}

function compile({name, unit}) {
  const outputSelection = {[unit]: {[name]: ['abi', 'evm.bytecode.object', 'evm.deployedBytecode.object']}};
  const sources = {[unit]: {content: readSource(unit).contents}};
  const input = {language: 'Solidity', sources, settings: {...settings, outputSelection}};
  const output = JSON.parse(solc.compile(JSON.stringify(input), {import: readSource}));
  const messages = (output.errors || []).filter(message => !isHarnessTooLarge(message));
  for (const message of messages) console.error(message.formattedMessage);
  if (messages.length) process.exit(1);
  return output.contracts[unit][name];
}

/** SHA-256 over the sources, so that an artefact left behind by a change is noticed without a compiler. */
function digestOf(folders) {
  const hash = crypto.createHash('sha256');
  for (const folder of folders) {
    for (const file of fs.readdirSync(path.join(__dirname, folder)).sort()) {
      hash.update(`${folder}/${file}\n`).update(fs.readFileSync(path.join(__dirname, folder, file)));
    }
  }
  return hash.digest('hex');
}

const [folder, only] = process.argv.slice(2);
for (const each of artefacts.filter(({name}) => !only || name === only)) {
  const {abi, evm} = compile(each);
  const document = {compiler: solc.version(), settings, sources: digestOf(each.folders), abi, bytecode: evm.bytecode.object};
  const target = path.join(folder || path.join(repository, each.place), `${each.name}.json`);
  fs.writeFileSync(target, JSON.stringify(document, null, 1) + '\n');
  console.log(each.name, evm.deployedBytecode.object.length / 2, 'bytes of code on chain');
}

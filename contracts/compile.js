// Compiles the contracts with the npm build of solc into artefacts that are committed, so that nothing in Python needs
// npm. `node compile.js` writes them to their places; `node compile.js FOLDER` writes them there, to be compared.
const fs = require('fs'), path = require('path'), solc = require('solc');
const settings = require('./settings.json');

const repository = path.join(__dirname, '..');
const artefacts = {
  'src/Coordinator.sol:Coordinator': 'src/tallystick/disputes/coordinators/ethereum/Coordinator.json',
  'harness/Harness.sol:Harness': 'tests/disputes/coordinators/ethereum/Harness.json',
};

function readSource(name) {
  try {
    return {contents: fs.readFileSync(path.join(__dirname, name), 'utf8')};
  } catch (error) {
    return {error: String(error)};
  }
}

function compile(units) {
  const sources = Object.fromEntries(units.map(unit => [unit, {content: readSource(unit).contents}]));
  const outputSelection = {'*': {'*': ['abi', 'evm.bytecode.object', 'evm.deployedBytecode.object']}};
  const input = {language: 'Solidity', sources, settings: {...settings, outputSelection}};
  const output = JSON.parse(solc.compile(JSON.stringify(input), {import: readSource}));
  for (const message of output.errors || []) console.error(message.formattedMessage);
  if ((output.errors || []).length) process.exit(1);
  return output.contracts;
}

const contracts = compile([...new Set(Object.keys(artefacts).map(name => name.split(':')[0]))]);
for (const [name, place] of Object.entries(artefacts)) {
  const [unit, contract] = name.split(':');
  const {abi, evm} = contracts[unit][contract];
  const target = process.argv[2] ? path.join(process.argv[2], path.basename(place)) : path.join(repository, place);
  const artefact = {compiler: solc.version(), settings, abi, bytecode: evm.bytecode.object};
  fs.writeFileSync(target, JSON.stringify(artefact, null, 1) + '\n');
  console.log(contract, evm.deployedBytecode.object.length / 2, 'bytes of code on chain');
}

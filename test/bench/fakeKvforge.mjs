// Stands in for `kvforge reconstruct`: notes the call, and writes what the stand-in model knows.
import { appendFileSync, readFileSync, writeFileSync } from 'node:fs';

const [log, command, scheme, ...rest] = process.argv.slice(2);
const option = (name) => rest[rest.indexOf(name) + 1];
const calibrated = rest.includes('--calibration') ? ` by ${readFileSync(option('--calibration'), 'utf8')}` : '';
appendFileSync(
  log,
  `${command} ${scheme} ${readFileSync(option('--input'), 'utf8')} ${option('--device')}${calibrated}\n`,
);
const behaviour = /refused|killed/.exec(scheme.includes('.') ? readFileSync(scheme, 'utf8') : scheme)?.[0];
if (behaviour === 'killed') process.kill(process.pid, 'SIGKILL');
if (behaviour === 'refused') {
  console.log(JSON.stringify({ error: { message: 'keys: expected a smaller rank, got 99' } }));
  process.exitCode = 2;
} else {
  writeFileSync(option('--output'), scheme === 'shard' ? 'good' : 'poor');
  console.log(JSON.stringify({ bytes: scheme === 'shard' ? 100 : 50, fp16Bytes: 400 }));
}

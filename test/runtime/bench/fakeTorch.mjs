// Stands in for bench/cudnn_attend.py, run by Node; FAKE_TORCH says how it behaves.
import { createInterface } from 'node:readline';

const how = process.env.FAKE_TORCH ?? 'good';
const reply = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);

if (how === 'missing') {
  reply({ missing: "No module named 'torch'" });
  process.exit(0);
}
if (how === 'crash') {
  process.stderr.write('Traceback\nImportError: libcudnn.so.9: cannot open shared object file\n');
  process.exit(1);
}
if (how === 'hang') setInterval(() => {}, 1000);
else if (how === 'endless') setInterval(() => process.stdout.write('x'.repeat(65536)), 1);
else if (how === 'garbage') process.stdout.write('Welcome to Python <b>3</b>\n');
else if (how === 'form') reply({ torch: '2.11.0', cuda: '13.0', device: 'Fake GPU' });
else reply({ torch: '2.11.0', cuda: '13.0', cudnn: '91900', device: how === 'other' ? 'NVIDIA L4' : 'Fake GPU' });

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  if (request.op === 'prepare') {
    if (how === 'memory' && request.batch > 1) reply({ failed: 'CUDA out of memory. Tried to allocate 2.00 GiB.' });
    else
      reply({
        copies: 8,
        bytes: request.batch * request.tokens * request.kvHeads * request.headDim * 4,
        maxError: 2e-4,
      });
  } else if (request.op === 'time') {
    if (how === 'killed') process.kill(process.pid, 'SIGKILL');
    else if (how === 'silent') continue;
    else if (how === 'few') reply({ us: [1] });
    else if (how === 'negative') reply({ us: Array.from({ length: request.samples }, () => -1) });
    else if (how === 'twice') process.stdout.write('{"us":[1]}\n{"us":[2]}\n');
    else reply({ us: Array.from({ length: request.samples }, (_, i) => (how === 'slow' ? 1e5 : 10) + i) });
  }
}

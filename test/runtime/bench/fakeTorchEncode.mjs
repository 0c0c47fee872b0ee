// Stands in for bench/encode_torch.py, run by Node; FAKE_TORCH says how it behaves.
import { readFileSync, writeFileSync } from 'node:fs';

const [, , input, , tokens, , output] = process.argv;
const how = process.env.FAKE_TORCH;
if (how === 'hang') setInterval(() => {}, 1000);
else if (how === 'crash') {
  process.stderr.write("Traceback\nModuleNotFoundError: No module named 'torch'\n");
  process.exitCode = 1;
} else if (how === 'garbage') writeFileSync(output, 'nan');
else if (how !== 'nothing') {
  const file = readFileSync(input);
  const length = Number(file.readBigUInt64LE(0));
  const { k, v } = JSON.parse(file.subarray(8, 8 + length).toString());
  // Something of what was written comes back, so that a test sees that it was.
  const first = file.readUInt16LE(8 + length + k.data_offsets[0]);
  const last = file.readUInt16LE(8 + length + v.data_offsets[1] - 2);
  const report = {
    device: how === 'other' ? 'NVIDIA L4' : 'Fake GPU',
    torch: `2.11.0 ${k.shape} ${v.dtype} ${first} ${last}`,
    tokens: Number(tokens),
    milliseconds: {},
    errors: { 'basis: svd_lowrank': 0.2, 'basis: Gram': 0.21, 'Lloyd: one': 0.3, 'Lloyd: two': 0.31 },
    counted: how === 'uncounted' ? [] : ['basis: Gram', 'Lloyd: two'],
    total: 100,
    'total with svd_lowrank': 300,
  };
  writeFileSync(output, JSON.stringify(report));
}

import { spawnSync } from 'node:child_process';
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { packagePath, packageRoot } from '../../codegen/packageRoot.js';

const folder = mkdtempSync(join(tmpdir(), 'kvforge-resources-test-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** `npm run resources` with a compiler that says of one gram_keys on sm_90 that it spills so many bytes. */
function run(stores: number, loads: number): { status: number | null; output: string } {
  const script = `#!/bin/sh
if [ "$1" = --version ]; then echo 'Cuda compilation tools, release 13.0, V13.0.88'; exit; fi
for last; do :; done
for arch in sm_80 sm_90 sm_100 sm_120; do
  spills='0 bytes spill stores, 0 bytes spill loads'
  case $last-$arch in */shard/llama-3.1-8b/cuda/gram_keys.cu-sm_90) spills='${stores} bytes spill stores, ${loads} bytes spill loads';; esac
  echo "ptxas info    : Compiling entry function 'k' for '$arch'" >&2
  echo "    0 bytes stack frame, $spills" >&2
  echo "ptxas info    : Used 32 registers, 512 bytes smem" >&2
done
`;
  writeFileSync(join(folder, 'nvcc'), script);
  chmodSync(join(folder, 'nvcc'), 0o755);
  const env = { ...process.env, PATH: `${folder}${delimiter}${process.env.PATH}` };
  const command = [packagePath('node_modules', 'tsx', 'dist', 'cli.mjs'), packagePath('scripts', 'resources.ts')];
  const { status, stdout, stderr } = spawnSync(process.execPath, command, { cwd: packageRoot, env, encoding: 'utf8' });
  return { status, output: stdout + stderr };
}

it('fails when a kernel spills more than 64 bytes', () => {
  const within = run(32, 32);
  expect(within.output).toContain('1 with spills');
  expect(within.status).toBe(0);
  const beyond = run(36, 32);
  expect(beyond.output).toContain(
    'more than 64 bytes of spills:\n  shard/llama-3.1-8b/cuda/gram_keys.cu on sm_90: 68 bytes',
  );
  expect(beyond.status).toBe(1);
});

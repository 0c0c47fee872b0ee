import { execFile, spawnSync } from 'node:child_process';
import { mkdtemp, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { goodKernels } from './kernels.js';

const templates = resolve(import.meta.dirname, '../../../templates/cuda');
const found = spawnSync('nvcc', ['--version'], { encoding: 'utf8' });
const missing = found.status === 0 ? undefined : 'nvcc is not on PATH';

for (const architecture of ['sm_80', 'sm_90', 'sm_100', 'sm_120']) {
  test(`the prelude and its kernels compile for ${architecture}`, async (context) => {
    if (missing !== undefined) {
      console.info(`skipped: nvcc for ${architecture}: ${missing}`);
      context.skip(missing);
    }
    const folder = await mkdtemp(join(tmpdir(), 'kvforge-nvcc-'));
    const text = goodKernels.map((kernel) => kernel.source).join('\n');
    await writeFile(join(folder, 'all.cu'), text);
    const output = join(folder, 'all.cubin');
    const options = [`-arch=${architecture}`, '-cubin', '-Werror', 'all-warnings', '-I', templates];
    try {
      await promisify(execFile)('nvcc', [...options, join(folder, 'all.cu'), '-o', output]);
      expect((await stat(output)).size).toBeGreaterThan(1000);
    } finally {
      await rm(folder, { recursive: true });
    }
  });
}

import { execFile } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { promisify } from 'node:util';
import Table from 'cli-table3';
import { packagePath } from '../codegen/packageRoot.js';

const run = promisify(execFile);
const architectures = ['sm_80', 'sm_90', 'sm_90a', 'sm_100', 'sm_120'] as const;
/** Stores and loads together; a kernel that spills more is slow, and fails the step. */
const mostSpillBytes = 64;
const record = packagePath('bench', 'resources.json');

/** What ptxas says of one kernel on one architecture. */
interface Resources {
  readonly registers: number;
  readonly spillBytes: number;
  readonly sharedBytes: number;
}

/** Those that a golden is for: `cuda-sm_90a` is for that one alone, and the others are what runs on all. */
function architecturesOf(file: string): readonly string[] {
  const only = /cuda-(sm_\w+)/.exec(file)?.[1];
  return only === undefined ? architectures.filter((arch) => arch !== 'sm_90a') : [only];
}

/** Compiles one golden for every architecture; a warning of nvcc is an error. */
async function compile(file: string, scratch: string): Promise<Record<string, Resources>> {
  const targets = architecturesOf(file).flatMap((arch) => [
    '-gencode',
    `arch=${arch.replace('sm', 'compute')},code=${arch}`,
  ]);
  const output = join(scratch, `${basename(file)}.fatbin`);
  const { stderr } = await run('nvcc', [
    ...targets,
    '-fatbin',
    '-Werror',
    'all-warnings',
    '-Xptxas',
    '-v',
    '-o',
    output,
    file,
  ]);
  const resources: Record<string, Resources> = {};
  for (const block of stderr.split('Compiling entry function').slice(1)) {
    const number = (pattern: RegExp) => Number(pattern.exec(block)?.[1] ?? 0);
    resources[/for '(sm_\w+)'/.exec(block)![1]!] = {
      registers: number(/Used (\d+) registers/),
      spillBytes: number(/(\d+) bytes spill stores/) + number(/(\d+) bytes spill loads/),
      sharedBytes: number(/(\d+) bytes smem/),
    };
  }
  return resources;
}

async function goldenFiles(): Promise<string[]> {
  const entries = await readdir(packagePath('generated'), { recursive: true, withFileTypes: true });
  return entries
    .filter((entry) => entry.name.endsWith('.cu'))
    .map((entry) => join(entry.parentPath, entry.name))
    .sort();
}

const version = await run('nvcc', ['--version']).then(
  ({ stdout }) => /release (\S+),/.exec(stdout)?.[1],
  () => undefined,
);
if (version === undefined) {
  console.log('skipped: nvcc is not on PATH; install the CUDA toolkit or the nvidia-cuda-nvcc wheel');
} else {
  const scratch = await mkdtemp(join(tmpdir(), 'kvforge-resources-'));
  try {
    const files = await goldenFiles();
    const results: Record<string, Record<string, Resources>> = {};
    const queue = [...files];
    const worker = async () => {
      for (let file = queue.shift(); file !== undefined; file = queue.shift()) {
        results[file.slice(packagePath('generated').length + 1)] = await compile(file, scratch);
      }
    };
    await Promise.all([worker(), worker()]);
    await report(version, results);
  } finally {
    await rm(scratch, { recursive: true });
  }
}

async function report(
  nvcc: string,
  results: Readonly<Record<string, Readonly<Record<string, Resources>>>>,
): Promise<void> {
  const table = new Table({
    head: ['kernel', ...architectures.map((arch) => `${arch} registers / shared`)],
    style: { head: [], border: [], compact: true },
  });
  const sorted = Object.fromEntries(Object.entries(results).sort(([a], [b]) => a.localeCompare(b)));
  let spilled = 0;
  const excessive: string[] = [];
  for (const [file, byArchitecture] of Object.entries(sorted)) {
    table.push([
      file,
      ...architectures.map((arch) => {
        const resources = byArchitecture[arch];
        if (resources === undefined) return '';
        const { registers, sharedBytes, spillBytes } = resources;
        if (spillBytes > 0) spilled++;
        if (spillBytes > mostSpillBytes) excessive.push(`${file} on ${arch}: ${spillBytes} bytes`);
        return `${registers} / ${sharedBytes}${spillBytes > 0 ? ` spills ${spillBytes}` : ''}`;
      }),
    ]);
  }
  console.log(table.toString());
  const text = `${JSON.stringify({ nvcc, kernels: sorted }, null, 2)}\n`;
  if (process.argv.includes('--update')) await writeFile(record, text);
  else if ((await readFile(record, 'utf8').catch(() => '')) !== text) {
    console.log(
      `differs from bench/resources.json; another nvcc than ${nvcc} may explain it, else run with --update and review`,
    );
  }
  console.log(`${Object.keys(sorted).length} kernels compiled for ${architectures.join(', ')}; ${spilled} with spills`);
  if (excessive.length > 0) {
    console.log(`more than ${mostSpillBytes} bytes of spills:\n  ${excessive.join('\n  ')}`);
    process.exitCode = 1;
  }
}

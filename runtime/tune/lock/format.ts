import * as z from 'zod';
import { sha256 } from '../../../codegen/sha256.js';
import type { ModelShape } from '../../../dsl/model.js';
import type { Target } from '../../../dsl/stage.js';
import { parseShape, shapeText } from '../shapeClass.js';

/** Version of the form of a lock file. */
export const lockFormat = 1;

const tunables = z.record(z.string(), z.number());
const time = z.number().positive();

function isShape(text: string): boolean {
  try {
    return shapeText(parseShape(text)) === text;
  } catch {
    return false;
  }
}

/** One winner: what it is for, what it is, and how sure that is. */
export const entryShape = z.strictObject({
  scheme: z.string().min(1),
  /** Name of the model; which shape it has says the hash. */
  model: z.string().min(1),
  modelHash: z.string().regex(/^[0-9a-f]{12}$/, 'expected 12 hexadecimal digits'),
  target: z.string().min(1),
  device: z.string().min(1),
  driver: z.string().min(1),
  stage: z.string().min(1),
  shape: z.string().refine(isShape, 'expected sequences x tokens, such as 16x8192'),
  tunables,
  splits: z.int().min(1).max(1024).optional(),
  microseconds: time,
  spread: z.number().nonnegative(),
  /** Largest error of an attention output, over its largest magnitude, against float64 on the same codes. */
  error: z.number().nonnegative().optional(),
  /** Its inputs may have come from a cache: then the time is not that of a cache that is read once a token. */
  warm: z.literal(true).optional(),
  /** Others within the noise. */
  ties: z.array(z.strictObject({ tunables, splits: z.int().min(1).max(1024).optional(), microseconds: time })),
  /** SHA-256 of the texts that were timed. */
  source: z.string().regex(/^[0-9a-f]{64}$/, 'expected 64 hexadecimal digits'),
});

export type LockEntry = z.infer<typeof entryShape>;

/** Where an entry stands in a lock file; entries of equal names are of the same work on the same device. */
export function entryName({ scheme, modelHash, target, device, driver, stage, shape }: LockEntry): string {
  return [scheme, modelHash, target, device, driver, stage, shape].join(' | ');
}

/** What kernels are generated for, in one word or a few: `sm_90a`, `sm_80 plain`, `wgsl 16384 f16 subgroups`. */
export function targetName(target: Target): string {
  if (target.language === 'cuda') return `${target.arch}${target.tensorCores ? '' : ' plain'}`;
  const { workgroupBytes, f16, subgroups, subgroupMatrices } = target;
  return `wgsl ${workgroupBytes}${f16 ? ' f16' : ''}${subgroups ? ' subgroups' : ''}${subgroupMatrices ? ' matrices' : ''}`;
}

/** A hash of all of a model's shape except its name: 12 hexadecimal digits. */
export async function modelHash({ name: _, ...shape }: ModelShape): Promise<string> {
  const ordered = JSON.stringify(shape, (_key, value: unknown) => sortedKeys(value));
  return (await sha256(new TextEncoder().encode(ordered))).slice(0, 12);
}

function sortedKeys(value: unknown): unknown {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return value;
  return Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)));
}

/**
 * The text of a lock file. Entries are sorted by name, and each ends with a comma, as the version comes last: so a merge
 * by hand is the union of their lines.
 */
export function lockText(entries: readonly LockEntry[]): string {
  const named = entries.map((entry) => [entryName(entry), entry] as const).sort(([a], [b]) => (a < b ? -1 : 1));
  const blocks = named.map(([name, entry]) => `  ${JSON.stringify(name)}: ${entryText(entry)},\n`);
  return `{\n${blocks.join('')}  "format": ${lockFormat}\n}\n`;
}

/** A field a line; ties, a tie a line. */
function entryText(entry: LockEntry): string {
  const fields = Object.entries(sortedKeys(entry) as object).filter(([, value]) => value !== undefined);
  const lines = fields.map(([name, value]) => {
    const isList = Array.isArray(value) && value.length > 0;
    const text = isList ? `[\n${value.map((one) => `      ${lineText(one)}`).join(',\n')}\n    ]` : lineText(value);
    return `    ${JSON.stringify(name)}: ${text}`;
  });
  return `{\n${lines.join(',\n')}\n  }`;
}

/** JSON in one line, with spaces for people. */
function lineText(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(lineText).join(', ')}]`;
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  const fields = Object.entries(sortedKeys(value) as object).filter(([, each]) => each !== undefined);
  return fields.length === 0
    ? '{}'
    : `{ ${fields.map(([name, each]) => `${JSON.stringify(name)}: ${lineText(each)}`).join(', ')} }`;
}

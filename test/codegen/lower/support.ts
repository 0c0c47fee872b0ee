import { printCuda } from '../../../codegen/emit/cuda.js';
import { printWgsl } from '../../../codegen/emit/wgsl.js';
import { lowerText } from '../../../codegen/lower/lower.js';
import { type Root, specialize } from '../../../codegen/specialize.js';

const imports = `import {
  abs, bitsOf, type bool, ceil, clamp, cos, countOneBits, dot, exp, exp2, f16, f32, type FixedArray, floor, fma,
  fromBits, i32, inverseSqrt, isFiniteBits, log, log2, type Lookup, max, min, packHalf2, round, sin, sqrt, type Static,
  trunc, u32, uadd, umul, unpackHalf2, vec2f, vec2i, vec3f, vec4f, vec4u, vectorAdd, vectorMultiply, vectorScale,
  vectorSubtract, zeros,
} from 'kvforge';
`;

/** Device code behind the imports it may need; the imports are one line, so that positions count from line 2. */
export function source(text: string): string {
  return `${imports.replace(/\n/g, ' ').trim()}\n${text}`;
}

/** `name: message` for each text that lowering must refuse. */
export async function messages(texts: Readonly<Record<string, string>>): Promise<string> {
  const lines: string[] = [];
  for (const [name, text] of Object.entries(texts)) {
    const outcome = await lowerText(source(text), 'my.ts').then(
      () => 'LOWERED',
      (error: unknown) => (error instanceof Error ? error.message : String(error)),
    );
    lines.push(`${name}:`, `  ${outcome}`);
  }
  return `\n${lines.join('\n')}\n`;
}

/** The statements as the body of `f(x: f32, n: i32, w: u32, flag: bool, values: FixedArray<f32, 8>): void`. */
export function body(statements: string): string {
  const params = 'x: f32, n: i32, w: u32, flag: bool, values: FixedArray<f32, 8>, table: Lookup<f32>';
  return `function f(${params}): void {\n  'device';\n  ${statements}\n}`;
}

/** CUDA and WGSL of the last function of a text, or of the roots given. */
export async function print(text: string, roots?: readonly Root[]): Promise<string> {
  const functions = await lowerText(source(text), 'my.ts');
  const library = new Map(functions.map((one) => [one.name, one]));
  const last = functions.at(-1)!;
  const specialized = specialize(roots ?? [{ name: last.name, statics: {} }], library);
  return `\n${printCuda(specialized)}\n${printWgsl(specialized)}`;
}

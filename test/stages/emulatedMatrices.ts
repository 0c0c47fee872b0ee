const matrix = String.raw`subgroup_matrix_\w+<f(?:16|32), 16, 16>`;
const loadOf = String.raw`subgroupMatrixLoad<${matrix}, (row|col)_major>\(&(\w+), `;

/**
 * Rewrites a kernel that multiplies subgroup matrices for an adapter without them, without f16 and with subgroups of any
 * size: the first thread of 32 holds whole matrices, in float32, and what a subgroup shares goes through workgroup memory.
 * Offsets, strides and layouts of loads and stores are those of the kernel, and so are its barriers and all the rest of its
 * arithmetic; what tensor cores round is not.
 */
export function withEmulatedMatrices(source: string): string {
  const plain = source
    .replace(/^enable (f16|subgroups|chromium_experimental_subgroup_matrix);\n/gm, '')
    .replace(/ {2}@builtin\((subgroup_invocation_id|subgroup_size|subgroup_id)\) \w+: u32,\n/g, '')
    .replace(/vec4<f16>/g, 'vec4f');
  if (!source.includes('subgroup_matrix')) return plain;
  const names = new Set<string>();
  const named = (name: string): string => {
    names.add(name);
    return name;
  };
  const replaced = plain
    .replace(
      new RegExp(`var (\\w+) = ${matrix}\\(0\\.0\\);`, 'g'),
      (_, name: string) => `clear_matrix(${named(name)});`,
    )
    .replace(
      new RegExp(`(?:let |var )?(\\w+) = ${loadOf}`, 'g'),
      (_, name: string, major: string, memory: string) => `load_${memory}_${major}(${named(name)}, `,
    )
    .replace(new RegExp(loadOf, 'g'), `load_$2_$1(${named('loaded_matrix')}, `)
    .replace(/\w+ = subgroupMatrixMultiplyAccumulate\(/g, 'multiply_matrices(')
    .replace(/subgroupMatrixStore<row_major>\(&region, /g, 'store_region(')
    .replace(/subgroupMax\(value\)/g, 'shared_max(vec4f(value, value)).xy')
    .replace(/subgroupShuffleXor\((\w+), (\d+u)\)/g, 'shared_of($1, (emulated_thread % 32u) ^ $2)')
    .replace(/subgroupShuffle\(/g, 'shared_of(')
    .replace(/bitcast<u32>\(bitcast<vec2<f16>>\((\w+\.\w)\) \+ zero\)/g, 'pack2x16float(unpack2x16float($1) + zero)')
    .replace(/vec2<f16>\(f16\((.*)\) - 1024\.0h\)/g, 'vec2f($1 - 1024.0)')
    .replace(
      /bitcast<u32>\(bitcast<vec2<f16>>\(halves\) - vec2<f16>\(1152\.0h\)\)/g,
      'pack2x16float(unpack2x16float(halves) - vec2f(1152.0))',
    );
  const slots = [...names].map((name, slot) => `const ${name} = ${slot}u;`).join('\n');
  const [head, body] = splitAtEntry(replaced);
  return `${head}${slots}\nconst MATRICES = ${names.size}u;\n${emulation}${body}`;
}

/** The text up to the entry point, and the entry point with the names that it takes from the adapter otherwise. */
function splitAtEntry(source: string): readonly [string, string] {
  const entry = source.indexOf('@compute');
  const opened = source.indexOf(') {\n', entry) + ') {\n'.length;
  const names = '  let lane = thread % 32u;\n  let subgroup = thread / 32u;\n  emulated_thread = thread;\n';
  return [source.slice(0, entry), `${source.slice(entry, opened)}${names}${source.slice(opened)}`];
}

const load = (memory: string) => `
fn half_of_${memory}(unit: u32, half: u32) -> f32 {
  return unpack2x16float(${memory}[unit + half / 8u][half / 2u % 4u])[half % 2u];
}
fn load_${memory}_row(slot: u32, unit: u32, stride: u32) -> u32 {
  if (emulated_thread % 32u == 0u) {
    for (var i = 0u; i < 256u; i++) { matrices[slot * 256u + i] = half_of_${memory}(unit + i / 16u * stride, i % 16u); }
  }
  return slot;
}
fn load_${memory}_col(slot: u32, unit: u32, stride: u32) -> u32 {
  if (emulated_thread % 32u == 0u) {
    for (var i = 0u; i < 256u; i++) { matrices[slot * 256u + i] = half_of_${memory}(unit + i % 16u * stride, i / 16u); }
  }
  return slot;
}
`;

const emulation = `
var<private> matrices: array<f32, MATRICES * 256u>;
var<private> emulated_thread: u32;
var<workgroup> emulated: array<vec4f, THREADS>;
${load('region')}${load('mixed_queries')}
fn clear_matrix(slot: u32) {
  if (emulated_thread % 32u == 0u) {
    for (var i = 0u; i < 256u; i++) { matrices[slot * 256u + i] = 0.0; }
  }
}
fn store_region(unit: u32, slot: u32, stride: u32) {
  if (emulated_thread % 32u == 0u) {
    for (var i = 0u; i < 256u; i++) {
      region[unit + i / 16u * stride + i % 16u / 4u][i % 4u] = bitcast<u32>(matrices[slot * 256u + i]);
    }
  }
}
fn multiply_matrices(left: u32, right: u32, sum: u32) {
  if (emulated_thread % 32u == 0u) {
    for (var i = 0u; i < 256u; i++) {
      for (var k = 0u; k < 16u; k++) {
        matrices[sum * 256u + i] += matrices[left * 256u + i / 16u * 16u + k] * matrices[right * 256u + k * 16u + i % 16u];
      }
    }
  }
}
fn share_all(value: vec4f) {
  workgroupBarrier();
  emulated[emulated_thread] = value;
  workgroupBarrier();
}
fn shared_max(value: vec4f) -> vec4f {
  share_all(value);
  var top = value;
  for (var i = 0u; i < 32u; i++) { top = max(top, emulated[emulated_thread / 32u * 32u + i]); }
  return top;
}
fn shared_of(value: f32, lane: u32) -> f32 {
  share_all(vec4f(value));
  return emulated[emulated_thread / 32u * 32u + lane].x;
}

`;

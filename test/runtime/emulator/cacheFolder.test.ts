import { chmod, chown, mkdir, mkdtemp, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest';
import { cacheCheck } from '../../../cli/checks/host.js';
import { packagePath } from '../../../codegen/packageRoot.js';
import { cacheFolder, cacheFolders } from '../../../runtime/cacheFolder.js';

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'kvforge-test-'));
});
afterAll(() => rm(folder, { recursive: true }));
afterEach(() => vi.unstubAllEnvs());

/** Folders that must not be trusted: open to all, another user's, a link, open one level below, and no folder. */
async function untrusted(name: string): Promise<string[]> {
  const path = (part: string) => join(folder, name, part);
  for (const part of ['open', 'foreign', 'behind', 'below/emulator']) await mkdir(path(part), { recursive: true });
  await chmod(path('open'), 0o777);
  await chmod(path('below/emulator'), 0o770);
  await symlink(path('behind'), path('link'));
  await writeFile(path('file'), '');
  const made = ['open', 'link', 'below', 'file'].map(path);
  if (process.getuid?.() !== 0) return made;
  await chown(path('foreign'), 12345, 12345);
  return [...made, path('foreign')];
}

test('compiled code is kept in the first folder that nobody else can write to', async () => {
  const bad = await untrusted('kept');
  const good = join(folder, 'good', 'deep');
  expect(await cacheFolder(['emulator'], [...bad, good])).toBe(join(good, 'emulator'));
  expect((await stat(good)).mode & 0o777).toBe(0o700);
  for (const path of bad) {
    const fresh = await cacheFolder(['emulator'], [path]);
    expect(fresh.startsWith(join(tmpdir(), 'kvforge-'))).toBe(true);
    expect((await stat(fresh)).mode & 0o777).toBe(0o700);
    await rm(fresh, { recursive: true });
  }
});

test('the folders are those of the package, of the user, and a temporary one of the user', () => {
  const last = join(tmpdir(), `kvforge-${process.getuid?.() ?? 0}`);
  vi.stubEnv('XDG_CACHE_HOME', '/home/user/cache');
  expect(cacheFolders()).toEqual([packagePath('.cache', 'kvforge'), '/home/user/cache/kvforge', last]);
  vi.stubEnv('XDG_CACHE_HOME', '');
  expect(cacheFolders()).toEqual([packagePath('.cache', 'kvforge'), last]);
});

test('doctor names the folder that is used, and misses one where only the temporary one is left', async () => {
  const [open] = await untrusted('doctor');
  const [home, temporary] = [join(folder, 'home'), join(folder, 'temporary')];
  expect(await cacheCheck([open!, home, temporary])).toEqual({
    name: 'cache folder',
    ok: true,
    detail: home,
    fix: '',
  });
  expect(await cacheCheck([open!, temporary])).toEqual({
    name: 'cache folder',
    ok: false,
    detail: `${open} cannot be written, or others can write there too`,
    fix: 'Set XDG_CACHE_HOME to a folder that only you can write to; until then a temporary one serves.',
  });
});

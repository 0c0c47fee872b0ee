import Handlebars from 'handlebars';
import { expect, test } from 'vitest';
import { packagePath } from '../../codegen/packageRoot.js';
import { readTemplates, templateOptions } from '../../codegen/templates.js';
import { browserAssets } from '../../scripts/bundleAssets.js';

type Assets = typeof import('../../codegen/browserAssets.js');

/** The error of a template that is given nothing. */
function refusal(template: (context: object) => string): string {
  try {
    return `GIVEN ${template({})}`;
  } catch (error) {
    return (error as Error).message;
  }
}

test('a precompiled template refuses a name that the context lacks, as in Node', async () => {
  const assets = (await import(`data:text/javascript,${encodeURIComponent(await browserAssets())}`)) as Assets;
  const { partials, schedules } = await readTemplates('wgsl');
  const [own, bundled] = [Handlebars.create(), Handlebars.create()];
  for (const [name, text] of partials) own.registerPartial(name, text);
  for (const [name, spec] of Object.entries(assets.partials)) bundled.registerPartial(name, bundled.template(spec));
  expect(Object.keys(assets.schedules)).toEqual([...schedules.keys()]);
  for (const [name, text] of schedules) {
    const received = refusal(bundled.template(assets.schedules[name]!));
    expect(received, name).toMatch(/ not defined in |undefined/);
    expect(received, name).toBe(refusal(own.compile(text, templateOptions)));
  }
});

test('the assets are the same bytes on every build, and say nothing of the machine', async () => {
  const text = await browserAssets();
  expect(await browserAssets()).toBe(text);
  expect(text).not.toContain(packagePath());
});
